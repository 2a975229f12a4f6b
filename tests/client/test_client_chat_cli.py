"""`letterwise chat`, against a real server: one question answered, and a conversation in a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from letterwise.cli import main
from letterwise.v1 import chat_pb2

SECONDS = 20
# Makes the terminal on standard input the own one of a new session, so that Ctrl-C reaches the command.
OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(capsys: pytest.CaptureFixture[str], server: Any, *arguments: str) -> tuple[int, str, str]:
    """The command's exit code and what it printed to each stream."""
    code = main(["chat", *arguments, "--server", server.target])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def said(request: chat_pb2.ChatRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.messages]


def test_question_is_answered(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The reply alone, with a line's end, whatever it holds: a pipe is given what the model said."""
    assert run(capsys, server, "hello \x1b[31m there") == (0, "hello \x1b[31m there\n", "")
    assert run(capsys, server, "ends in a line\n") == (0, "ends in a line\n", "")
    assert said(server.servicer.requests[0]) == [("user", "hello \x1b[31m there")]


def test_arguments_are_sent(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them; a reply that was cut is told in JSON, and not in a pipe."""
    settings = [*("--system", "Be kind."), *("--max-tokens", "2"), *("--temperature", "0.5"), *("--top-p", "0.9")]
    settings += [*("--seed", "7"), *("--stop", "END"), *("--stop", "\n"), *("--adapter", "tone=-0.5")]
    assert run(capsys, server, "hello", *settings) == (0, "Be kind.\n", "")
    [sent] = server.servicer.requests
    assert said(sent) == [("system", "Be kind."), ("user", "hello")]
    assert (sent.max_tokens, sent.temperature, sent.top_p, sent.seed) == (2, 0.5, 0.9, 7)
    assert (list(sent.stop), sent.adapter.name, sent.adapter.scale) == (["END", "\n"], "tone", -0.5)


def test_json_is_the_whole_reply(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints text, reason, usage and times."""
    code, out, err = run(capsys, server, "one two", "--json", "--max-tokens", "1", "--adapter", "tone")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "text": "one",
        "finish_reason": "length",
        "usage": {"input_tokens": 2, "output_tokens": 1},
        "model": "scripted",
        "reused_tokens": 1,
        "queue_seconds": 0.25,
        "total_seconds": 1.5,
    }


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_question_is_read_from_standard_input(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """All of it is one question, in UTF-8 whatever the locale."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("日本\nis it?\n".encode()), encoding="ascii"))
    assert run(capsys, server, *arguments) == (0, "日本\nis it?\n", "")
    assert said(server.servicer.requests[0]) == [("user", "日本\nis it?")]


@pytest.mark.parametrize(
    ("given", "told"),
    [*[(blank, "expected a question") for blank in (b"", b"\n", b" \t\n")], (b"\xff", "expected UTF-8 text")],
)
def test_standard_input_without_a_question_is_wrong_usage(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: bytes, told: str
) -> None:
    """One line, code 2, nothing sent."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    code, out, err = run(capsys, server)
    assert (code, out, err.count("\n"), told in err) == (2, "", 1, True)
    assert server.servicer.requests == []


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("chat --server {} <&-", 2, "standard input: is closed"),
        ("decide - --server {} <&-", 2, "standard input: is closed"),
        ("chat hi --server {} >&-", 1, "standard output: is closed"),
        ("chat hi --server {} > /dev/full", 1, "standard output: No space left on device"),
        ("chat hi --json --server {} > /dev/full", 1, "standard output: No space left on device"),
    ],
)
def test_closed_or_full_stream_is_one_line(server: Any, command: str, code: int, told: str) -> None:
    """What a shell can do to the command's own input and output is told as other faults are."""
    line = f'exec "{sys.executable}" -m letterwise.cli {command.format(server.target)}'
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ended.returncode, ended.stderr) == (code, f"letterwise: {told}\n")


def test_wrong_arguments_end_with_2(server: Any, refusal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that cannot be read, those that cannot be sent, and those that the server refuses, by their flags."""
    for flag, value in (("--max-tokens", "x"), ("--adapter", "tone=loud"), ("--timeout", "0")):
        with pytest.raises(SystemExit) as ended:
            main(["chat", "hi", flag, value])
        assert ended.value.code == 2
        assert f"argument {flag}: " in capsys.readouterr().err.splitlines()[-1]
    assert run(capsys, server, "hi", "--seed", "-1")[::2] == (
        2,
        f"letterwise: --seed: expected a whole number from 0 to {2**64 - 1}\n",
    )
    for number, told in (("0", "a whole number above 0"), (str(2**32), "a smaller number, one that 32 bits can hold")):
        assert run(capsys, server, "hi", "--max-tokens", number)[::2] == (
            2,
            f"letterwise: --max-tokens: expected {told}\n",
        )
    bad = error_details_pb2.BadRequest()
    for field in ("top_p", "stop[0]", "adapter.name", "messages[0].content"):
        bad.field_violations.add(field=field, description="expected more")
    server.servicer.refusals = [refusal(grpc.StatusCode.INVALID_ARGUMENT, details=(bad,))]
    code, out, err = run(capsys, server, "hi")
    assert (code, out) == (2, "")
    flags = ("--top-p", "--stop", "--adapter", "messages[0].content")
    assert err == f"letterwise: {'; '.join(f'{flag}: expected more' for flag in flags)}\n"


def test_failures_are_one_line(server: Any, refusal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 1; what came before stays, with its line ended."""
    server.servicer.breaks = refusal(grpc.StatusCode.INTERNAL, "it broke")
    assert run(capsys, server, "hello there") == (1, "hello\n", "letterwise: it broke\n")
    assert main(["chat", "hi", "--server", "127.0.0.1:1", "--timeout", "5"]) == 1
    told = "letterwise: cannot reach 127.0.0.1:1: connection refused; is the server running?\n"
    assert capsys.readouterr() == ("", told)


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, target: str, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        command = [str(Path(sys.executable).with_name("letterwise")), "chat", "--server", target, *arguments]
        environment = {**os.environ, "TERM": "dumb", "PYTHONWARNINGS": "error"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *command], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self.seen = ""
        self._place = 0

    def wait(self, text: str, seconds: float = SECONDS) -> str:
        """Reads on until `text` is shown; what was shown up to it since the last one."""
        end = time.monotonic() + seconds
        while (found := self.seen.find(text, self._place)) < 0:
            if not select.select([self._master], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError(self.seen)
            self._read()
        shown, self._place = self.seen[self._place : found], found + len(text)
        return shown

    def _read(self) -> None:
        try:
            self.seen += os.read(self._master, 4096).decode().replace("\r", "")
        except OSError:  # the command has ended and let the terminal go
            raise AssertionError(f"ended: {self.seen}") from None

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._master, text.encode())

    def interrupt(self, shown: str) -> None:
        """Presses Ctrl-C, and again while nothing comes of it: Python's readline loses one between prompt and wait."""
        for _ in range(10):
            self.type("\x03")
            with suppress(TimeoutError):
                self.wait(shown, SECONDS / 10)
                return
        raise TimeoutError(self.seen)

    def ended(self) -> int:
        """The exit code."""
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(server: Any) -> Iterator[Terminal]:
    """A conversation that has just begun."""
    opened = Terminal(server.target, "--system", "Be kind.")
    yield opened
    opened.close()


def test_conversation_keeps_what_was_said(server: Any, terminal: Terminal) -> None:
    """Each request has all of it; /reset starts over, a slash alone helps, an empty line is none, /exit ends."""
    assert "scripted: /reset starts over" in terminal.wait("> ")
    terminal.type("hello\n")
    terminal.wait("Be kind. hello\n> ")
    terminal.type("\n/what\n")
    terminal.wait("/reset starts over")
    terminal.wait("> ")
    terminal.type("/usr is what?\n")
    terminal.wait("Be kind. hello Be kind. hello /usr is what?\n> ")
    terminal.type("/reset\n")
    terminal.wait("started over\n> ")
    terminal.type("again\n")
    terminal.wait("Be kind. again\n> ")
    terminal.type("/exit\n")
    assert terminal.ended() == 0
    first, second, third = (said(request) for request in server.servicer.requests[1:])
    assert first == [("system", "Be kind."), ("user", "hello")]
    assert second == [*first, ("assistant", "Be kind. hello"), ("user", "/usr is what?")]
    assert third == [("system", "Be kind."), ("user", "again")]


def test_ctrl_c_stops_the_reply_and_keeps_the_conversation(server: Any, terminal: Terminal) -> None:
    """The server's work ends, what came is part of the conversation, Ctrl-C at the prompt does nothing, Ctrl-D ends."""
    server.servicer.hold = threading.Event()
    terminal.wait("> ")
    server.servicer.ended.clear()
    terminal.type("hello\n")
    terminal.wait("\nBe")
    terminal.type("\x03")
    terminal.wait("(stopped)\n> ")
    assert server.servicer.ended.wait(30)
    terminal.type("half a li")
    terminal.interrupt("> ")
    server.servicer.hold = None
    terminal.type("go on\n")
    terminal.wait("Be kind. hello Be go on\n> ")
    terminal.type("\x04")
    assert terminal.ended() == 0
    assert said(server.servicer.requests[-1])[1:] == [("user", "hello"), ("assistant", "Be"), ("user", "go on")]


def test_failed_turn_leaves_the_conversation_open(server: Any, refusal: Any, terminal: Terminal) -> None:
    """One line, and the question that was not answered is not part of what follows."""
    terminal.wait("> ")
    server.servicer.refusals = [refusal(grpc.StatusCode.INTERNAL, "it broke")]
    terminal.type("lost\n")
    terminal.wait("letterwise: it broke\n> ")
    terminal.type("kept\n")
    terminal.wait("Be kind. kept\n> ")
    assert said(server.servicer.requests[-1])[1:] == [("user", "kept")]
    server.servicer.refusals = [refusal(grpc.StatusCode.UNIMPLEMENTED, "this server does not chat")]
    terminal.type("more\n")
    terminal.wait("letterwise: this server does not chat\n")
    assert terminal.ended() == 1


def test_terminal_is_not_driven_by_a_reply(server: Any) -> None:
    """Control characters are shown and not sent; a cut reply is told where a reader sees it."""
    terminal = Terminal(server.target, "one\ttwo \x1b[2J\x9b three", "--max-tokens", "2")
    shown = terminal.wait("--max-tokens N allows more)\n")
    assert terminal.ended() == 0
    terminal.close()
    assert shown == "one\ttwo \\x1b[2J\\x9b\n(cut off after 2 tokens; "


def test_conversation_needs_a_terminal(server: Any) -> None:
    """With its output redirected, or as JSON, there is nobody to talk to."""
    terminal = Terminal(server.target, "--json")
    terminal.wait("letterwise: a conversation is held in a terminal, without --json: give a question\n")
    assert terminal.ended() == 2
    terminal.close()

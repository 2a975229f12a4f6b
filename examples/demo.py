"""The whole of Letterwise in one run: serve the embedded model, ask it about a support ticket, show the answers, stop.

Uses what a caller would: the `letterwise-service` command and the `letterwise` client. Whatever happens, the server
that it started is stopped before it ends. Exit codes: 0 answered, 1 not, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from letterwise import Client, Decision, LetterwiseError, gather
from letterwise import jev as requests
from letterwise.display import open_display

TICKET = Path(__file__).with_name("ticket.json")
SERVICE = str(Path(sys.executable).with_name("letterwise-service"))
COMMAND = [SERVICE, "serve", "--model", "demo", "--port", "0", "--http-port", "0", "--log-level", "warning"]
START_SECONDS = 120.0
STOP_SECONDS = 15.0


class DemoFailed(Exception):
    """The demo cannot go on; one sentence says why."""


def main() -> int:
    """Runs the demo; its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end the demo
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _fetch()
        with _server() as target:
            _ask(target)
    except (DemoFailed, LetterwiseError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; the server is stopped", file=sys.stderr)
        return 130
    _say("")
    _say("The server is stopped. To go on by hand: `make serve`, and in another terminal")
    _say(f"  {_from_here(Path(SERVICE).with_name('letterwise'))} stream {_from_here(TICKET)}")
    _say("The embedded model has 135 million parameters and judges near chance: it shows the machinery, not judgement.")
    return 0


def _from_here(path: Path) -> str:
    return os.path.relpath(path)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)


def _fetch() -> None:
    """The embedded model is in the cache when this returns; the command shows a bar while it is not."""
    if subprocess.run([SERVICE, "fetch"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        raise DemoFailed("the embedded model cannot be had")


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The target of a server of our own, stopped when the block ends."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            ready = _ready_line(process, log)
            _say(f"{ready}  ({time.monotonic() - began:.1f} s to load)")
            yield ready.rsplit(" ", 1)[-1]
        finally:
            _stop(process)


def _ready_line(process: subprocess.Popen[str], log: IO[str]) -> str:
    """What the server prints when it is warm."""
    assert process.stdout is not None
    with _spinner("loading the model"), selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline().strip() if selector.select(START_SECONDS) else ""
    if line:
        return line
    log.seek(0)
    told = log.read().splitlines()
    raise DemoFailed(told[-1] if told else f"the server was not ready within {START_SECONDS:.0f} s")


def _stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM and a wait; whoever interrupts the wait, or waits too long, has the process killed."""
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except BaseException as problem:
        process.kill()
        process.wait()
        if not isinstance(problem, subprocess.TimeoutExpired):
            raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _ask(target: str) -> None:
    """Streams the ticket's decision to the screen, and asks it again to show a kept state."""
    body = requests.read_body(requests.parse(TICKET.read_bytes()))
    _say(f"\nThe state, from {TICKET.name}:\n")
    _say(_quoted(str(body.state)))
    _say("\nIts questions:\n")
    for name, question in body.questions.items():
        condition = "".join(f" (asked if {of} is {_words(wanted)})" for of, wanted in question.ask_if.items())
        _say(f"  {name}: {question.instructions}{condition}")
    _say("")
    with Client(target) as client:
        first = _streamed(client, body)
        again = client.decide(body.state, body.questions)
    _compare(first, again)


def _words(wanted: object) -> str:
    return wanted if isinstance(wanted, str) else " or ".join(wanted) if isinstance(wanted, list) else str(wanted)


def _quoted(text: str) -> str:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 92) or [""]]
    return "\n".join(f"  │ {line}".rstrip() for line in lines)


def _streamed(client: Client, body: requests.Body) -> Decision:
    """Shows each event as it comes: bars in a terminal, plain lines in a pipe."""
    display = open_display(sys.stdout)
    seen = []
    try:
        with client.decide_stream(body.state, body.questions) as events:
            for event in events:
                display.show(event)
                seen.append(event)
    finally:
        display.close()
    return gather(seen, list(body.questions))


def _compare(first: Decision, again: Decision) -> None:
    """The same request gives the same numbers, from a state that was kept."""
    run, kept = first.diagnostics, again.diagnostics
    _say(
        f"\nAsked again: {kept.prefix.reused_tokens} of the state's {kept.prefix.tokens} tokens were kept, so "
        f"{kept.computed_tokens} tokens were computed\ninstead of {run.computed_tokens}, "
        f"in {kept.total_seconds:.2f} s instead of {run.total_seconds:.2f} s."
    )
    if first.answers != again.answers:
        raise DemoFailed("the second answer has other numbers than the first, which must never happen")
    _say("Every number is the same, to the last bit.")


@contextlib.contextmanager
def _spinner(words: str) -> Iterator[None]:
    """Something that moves in a terminal while there is nothing else to see; a line in a pipe."""
    if not sys.stdout.isatty():
        _say(f"{words} …")
        yield
        return
    from rich.console import Console

    with Console().status(f"{words} …"):
        yield


if __name__ == "__main__":
    sys.exit(main())

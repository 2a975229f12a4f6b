"""The `letterwise` command, against a real server: what it prints, and with which exit code it ends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from rich.console import Console

from letterwise import (
    Accepted,
    Answered,
    ChoiceAnswer,
    Event,
    NoulAnswer,
    PrefixProgress,
    ScoreAnswer,
    Skipped,
    WasSkipped,
    __version__,
)
from letterwise.cli import main
from letterwise.display import PlainDisplay, event_lines, open_display
from letterwise.terminal import MOST_ROWS, TerminalDisplay

BODY: dict[str, Any] = {
    "state": "I was charged twice!",
    "model": "jev-latest",
    "seed": 3,
    "questions": {
        "angry": {"type": "noul", "instructions": "Angry?", "criteria": {"true": "furious"}, "alone": True},
        "team": {"type": "choice", "instructions": "Team?", "criteria": {"billing": "money", "shipping": None}},
        "urgency": {"type": "score", "instructions": "Urgent?", "criteria": ["can wait", ["today", 1], "now"]},
        "refund": {"type": "noul", "instructions": "Refund?", "ask_if": {"angry": ["yes"]}},
    },
}


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """A file that holds BODY."""
    path = tmp_path / "request.json"
    path.write_text(json.dumps(BODY), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command's exit code and what it printed to each stream."""
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_decide_prints_plain_lines(server: Any, request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, each answer is a line and each option another."""
    code, out, err = run(capsys, "decide", request_file, "--server", server.target)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "angry: yes, letter mass 0.300",
        "  0.666667 yes",
        "  0.333333 no",
        "team: billing, confidence 0.333, letter mass 0.300",
        "  0.666667 billing",
        "  0.333333 shipping",
        "urgency: 0.143 from 0 to 2, confidence 0.250, letter mass 0.300",
        "  0.500000 0 can wait",
        '  0.250000 1 ["today", 1]',
        "  0.250000 2 now",
        "refund: skipped, because angry answered no (asked only for yes)",
        "scripted: 3 passes, 2 forwards, 400 prompt tokens, 64 reused, 200 computed, 0.50 s",
    ]


def test_stream_prints_events_as_they_come(server: Any, request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan and the progress come before the answers."""
    code, out, _ = run(capsys, "stream", request_file, "--server", server.target)
    lines = out.splitlines()
    assert code == 0
    assert lines[:2] == ["accepted: 3 passes, 400 prompt tokens", "state: 64 of 150 tokens, 64 reused"]
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")][4:] == [
        "refund",
        "urgency",
        "team",
        "angry",
        "scripted",
    ]


def test_json_is_the_jev_reply(server: Any, request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the Jev reply, unrounded, the same for `decide` and `stream`."""
    _, out, _ = run(capsys, "decide", request_file, "--json", "--server", server.target)
    _, streamed, _ = run(capsys, "stream", request_file, "--json", "--server", server.target)
    assert out == streamed
    reply = json.loads(out)
    mass = 0.1 + 0.2
    assert reply["answers"] == {
        "angry": {"type": "noul", "noul": 2 / 3},
        "team": {
            "type": "choice",
            "choice": "billing",
            "probabilities": {"billing": 2 / 3, "shipping": 1 / 3},
            "confidence": 1 / 3,
        },
        "urgency": {
            "type": "score",
            "score": 1 / 7,
            "legend": {"0": "can wait", "1": ["today", 1], "2": "now"},
            "probabilities": {"0": 0.5, "1": 0.25, "2": 0.25},
            "confidence": 0.25,
        },
    }
    assert (reply["model"], reply["usage"]) == ("scripted", {"input_tokens": 400, "output_tokens": 0})
    diagnostics = reply["diagnostics"]
    assert diagnostics["skipped"] == [{"id": "refund", "because": "angry", "was": "no", "wanted": ["yes"]}]
    assert diagnostics["ignored"] == ["seed", "questions.angry.alone"]
    assert diagnostics["letter_mass"] == {"angry": mass, "team": mass, "urgency": mass}
    assert server.servicer.requests[0].model == "jev-latest"


def test_prewarm_and_info_print(server: Any, request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The smaller commands print a line or a list, and JSON when asked."""
    address = ("--server", server.target)
    line = "scripted: 150 tokens, 64 reused, kept (tier exact)\n"
    assert run(capsys, "prewarm", request_file, *address) == (0, line, "")
    assert json.loads(run(capsys, "prewarm", request_file, "--json", *address)[1])["reused_tokens"] == 64
    _, shown, _ = run(capsys, "info", *address)
    assert "  temperature              0.85\n" in shown
    assert "  problem                  none\n" in shown
    assert json.loads(run(capsys, "info", "--json", *address)[1])["model"]["name"] == "scripted"


def test_request_is_read_from_standard_input(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-` reads the body from standard input, in UTF-8 whatever the locale."""
    body = json.dumps({**BODY, "state": "日本語 🙂"}, ensure_ascii=False).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body), encoding="ascii"))
    code, _, _ = run(capsys, "decide", "-", "--server", server.target)
    assert code == 0
    assert server.servicer.requests[0].state.text == "日本語 🙂"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "line 1 is not JSON"),
        ("[1]", "must be a JSON object"),
        ("\xff", "UTF-8"),
        ('{"state": NaN}', "NaN"),
        ("[" * 100_000, "nested"),
        ('{"state": 1e400, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "state"),
        ('{"questions": {"q": {"type": "noul", "instructions": "?"}}}', "state: is required"),
        ('{"state": "s"}', "questions:"),
        ('{"state": "s", "questions": []}', "questions:"),
        ('{"state": "s", "questions": {"q": 1}}', "questions.q:"),
        ('{"state": "s", "questions": {"q": {"type": "noul"}}}', "questions.q.instructions"),
        ('{"state": "s", "questions": {"q": {"type": "bool", "instructions": "?"}}}', "questions.q.type"),
        ('{"state": "s", "questions": {"q": {"type": "choice", "instructions": "?"}}}', "questions.q.criteria"),
        ('{"state": "s", "questions": {"q": {"type": "score", "instructions": "?", "criteria": {}}}}', "q.criteria"),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "criteria": []}}}', "q.criteria"),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "ask_if": []}}}', "q.ask_if"),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "ask_if": {"a": 1}}}}', "ask_if.a"),
        ('{"state": "s", "samples": 0, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "samples"),
        ('{"state": "s", "ask": "q", "questions": {"q": {"type": "noul", "instructions": "?"}}}', "ask"),
        ('{"state": "s", "model": 1, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "model"),
        ('{"state": "s", "images": ["x"], "questions": {"q": {"type": "noul", "instructions": "?"}}}', "images"),
        ('{"state": "s", "state": "t", "questions": {}}', "state: stands twice"),
        ('{"state": "\\ud800", "questions": {"q": {"type": "noul", "instructions": "?"}}}', "state"),
    ],
)
def test_bad_request_file_names_its_field(
    text: str, named: str, server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be read ends with code 2 and one line that names the field; nothing is sent."""
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    code, out, err = run(capsys, "decide", path, "--server", server.target)
    assert (code, out) == (2, "")
    assert err.startswith("letterwise: request file: ")
    assert named in err
    assert err.count("\n") == 1
    assert server.servicer.requests == []


def test_missing_file_and_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file that is not there and an argument that makes no sense are the caller's to mend."""
    code, _, err = run(capsys, "decide", tmp_path / "none.json")
    assert (code, err) == (2, f"letterwise: {tmp_path / 'none.json'}: No such file or directory\n")
    for wrong in ([], ["decide"], ["decide", "-", "--timeout", "0"], ["info", "--timeout", "x"], ["guess"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("questions[1].options[1].name", "questions.team.criteria.shipping"),
        ("questions[1].options", "questions.team.criteria"),
        ("questions[2].levels[1]", "questions.urgency.criteria[1]"),
        ("questions[0].yes", "questions.angry.criteria.true"),
        ("questions[3].ask_if[0].answers[0]", "questions.refund.ask_if.angry"),
        ("questions[0].id", "questions.angry"),
        ("questions[0].instructions", "questions.angry.instructions"),
        ("questions[9].id", "questions[9].id"),
        ("samples", "samples"),
    ],
)
def test_refused_request_is_told_in_the_files_paths(
    path: str, told: str, server: Any, refusal: Any, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's field violations are the file's own fault, so they are named as the file has them."""
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field=path, description="expected something else")
    server.servicer.refusals = [refusal(grpc.StatusCode.INVALID_ARGUMENT, details=(bad,))]
    code, out, err = run(capsys, "decide", request_file, "--server", server.target)
    assert (code, out, err) == (2, "", f"letterwise: request file: {told}: expected something else\n")


def test_service_failure_ends_with_1(
    server: Any, refusal: Any, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure of the service is one sentence on the error stream."""
    wait = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=3))
    full = refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", (wait,), (("grpc-retry-pushback-ms", "-1"),)
    )
    server.servicer.refusals = [full]
    told = run(capsys, "decide", request_file, "--server", server.target)
    assert told == (1, "", "letterwise: the queue is full (try again in 3 s)\n")
    code, out, err = run(capsys, "info", "--server", "127.0.0.1:1", "--timeout", "5")
    assert (code, out) == (1, "")
    assert err.startswith("letterwise: no answer from the server at 127.0.0.1:1: ")
    assert err.count("\n") == 1


def test_command_is_installed_and_survives_a_closed_pipe(server: Any, request_file: Path) -> None:
    """The console script runs, tells its version, and ends quietly when its reader has gone."""
    command = [str(Path(sys.executable).parent / "letterwise")]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"letterwise {__version__}\n"
    asked = [*command, "stream", str(request_file), "--server", server.target]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gone:
        assert gone.stdout is not None
        assert gone.stderr is not None
        gone.stdout.close()
        assert gone.stderr.read() == b""
    assert gone.returncode == 1


EVENTS: list[Event] = [
    Accepted(4, 2900),
    PrefixProgress(512, 687, 512),
    PrefixProgress(687, 687, 512),
    Answered(NoulAnswer("angry", 0.25, 0.5)),
    Answered(ScoreAnswer("urgency", 1.5, (0.25, 0.5, 0.25), ("low", {"k": "é"}, "two\nlines\x1b[2J"), 0.5, 0.25)),
    Answered(ChoiceAnswer("many", "o15", {f"o{i}": 0.3 if i == 15 else 0.007 for i in range(101)}, 0.5, 0.3)),
    WasSkipped(Skipped("refund", "angry", "no", ("yes",))),
    WasSkipped(Skipped("again", "refund", None, ("yes", "no", "maybe"))),
]


def test_terminal_shows_a_bar_for_each_option() -> None:
    """Progress, bars and percentages are drawn; a long choice shows its most probable options and sums the rest."""
    out = io.StringIO()
    display = TerminalDisplay(Console(file=out, force_terminal=True, color_system=None, width=100, highlight=False))
    for event in EVENTS:
        display.show(event)
    display.close()
    text = out.getvalue()
    lines = [line.rstrip() for line in text.splitlines()]
    assert any("687 of 687 tokens, 512 reused" in line for line in lines)
    assert "  yes ███████                      25.0%" in lines
    assert "  no  █████████████████████        75.0%" in lines
    assert any(line.startswith('  1 {"k": "é"}') and line.endswith("50.0%") for line in lines)
    assert "\\n" in text
    assert "\x1b[2J" not in text
    many = lines[lines.index("many  o15, confidence 0.500, letter mass 0.300") + 1 :]
    assert many[0].startswith("  o15 ")
    assert many[MOST_ROWS] == f"  and {101 - MOST_ROWS} more, 62.3% together"
    assert "refund  skipped, because angry answered no (asked only for yes)" in lines
    assert "again  skipped, because refund was skipped (asked only for yes, no or maybe)" in lines
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


def test_plain_lines_never_drive_a_terminal() -> None:
    """Control characters of a level are escaped, and every event is told in whole lines."""
    lines = [line for event in EVENTS for line in event_lines(event)]
    assert "  0.250000 2 two\\nlines\\x1b[2J" in lines
    assert all(line.isprintable() for line in lines)


def test_display_suits_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars in a terminal with rich; plain lines for a pipe, and where rich is missing."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(open_display(Terminal()), TerminalDisplay)
    assert isinstance(open_display(io.StringIO()), PlainDisplay)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(open_display(Terminal()), PlainDisplay)

"""The `letterwise` command, against a real server: what it prints, and with which exit code it ends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from letterwise import (
    __version__,
)
from letterwise.cli import main

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
    assert (code, err) == (0, "ignored: seed, questions.angry.alone\n")
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
    assert "  adapters                 tone, law\n" in shown
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
        ("[1]", "expected a JSON object"),
        ("\xff", "UTF-8"),
        ('{"state": NaN}', "NaN"),
        ("[" * 100_000, "nested"),
        ('{"state": 1e400, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "state"),
        ('{"questions": {"q": {"type": "noul", "instructions": "?"}}}', "state: is missing; expected text"),
        ('{"state": "s"}', "questions: is missing; expected an object"),
        ('{"state": "s", "question": {}}', "one question, by id ('question' is no field)"),
        ('{"stat": "s", "questions": {"q": {"type": "noul", "instructions": "?"}}}', "but null ('stat' is no field)"),
        (
            '{"state": "s", "questions": {"q": {"type": "noul", "instruction": "?"}}}',
            "questions.q.instructions: is missing; expected what is asked ('instruction' is no field)",
        ),
        ('{"state": "s", "questions": []}', "questions:"),
        ('{"state": "s", "questions": {"q": 1}}', "questions.q:"),
        ('{"state": "s", "questions": {"q": {"type": "noul"}}}', "questions.q.instructions"),
        ('{"state": "s", "questions": {"q": {"type": "bool", "instructions": "?"}}}', "questions.q.type"),
        (
            '{"state": "s", "questions": {"q": {"type": "choice", "instructions": "?"}}}',
            "questions.q.criteria: is missing",
        ),
        (
            '{"state": "s", "questions": {"q": {"type": "score", "instructions": "?", "criteria": {}}}}',
            "q.criteria: expected",
        ),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "criteria": []}}}', "q.criteria"),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "ask_if": []}}}', "q.ask_if"),
        ('{"state": "s", "questions": {"q": {"type": "noul", "instructions": "?", "ask_if": {"a": 1}}}}', "ask_if.a"),
        ('{"state": "s", "samples": 0, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "samples"),
        ('{"state": "s", "ask": "q", "questions": {"q": {"type": "noul", "instructions": "?"}}}', "ask"),
        ('{"state": "s", "model": 1, "questions": {"q": {"type": "noul", "instructions": "?"}}}', "model"),
        ('{"state": "s", "images": ["x"], "questions": {"q": {"type": "noul", "instructions": "?"}}}', "images"),
        ('{"state": "s", "state": "t", "questions": {}}', "state: stands twice"),
        (
            '{"state": "s", "questions": {"q": {"criteria": [1, {"a": 1, "a": 2}]}}}',
            "questions.q.criteria[1].a: stands",
        ),
        ('{"state": "s", "questions": {"": {"type": "noul", "instructions": "?"}}}', "ids that are not empty"),
        (
            '{"state": "s", "adapter": 1, "questions": {"q": {"type": "noul", "instructions": "?"}}}',
            "adapter: expected",
        ),
        (
            '{"state": "s", "adapter": {}, "questions": {"q": {"type": "noul", "instructions": "?"}}}',
            "adapter.name: is",
        ),
        (
            '{"state": "s", "adapter": {"name": "a", "scale": "x"},'
            ' "questions": {"q": {"type": "noul", "instructions": "?"}}}',
            "adapter.scale: expected",
        ),
        (
            '{"state": "s", "service_class": "slow", "questions": {"q": {"type": "noul", "instructions": "?"}}}',
            "service_class: expected interactive or batch",
        ),
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
    assert err.startswith(f"letterwise: {path}: ")
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
    assert (code, out, err.splitlines()[1:]) == (
        2,
        "",
        [f"letterwise: {request_file}: {told}: expected something else"],
    )


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
    assert told[:2] == (1, "")
    assert told[2].splitlines()[1:] == ["letterwise: the queue is full (try again in 3 s)"]
    server.servicer.refusals = [refusal(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")]
    told = run(capsys, "info", "--server", server.target)
    assert told == (1, "", "letterwise: a token is needed; LETTERWISE_TOKEN holds the token\n")
    code, out, err = run(capsys, "info", "--server", "127.0.0.1:1", "--timeout", "5")
    assert (code, out) == (1, "")
    assert err == "letterwise: cannot reach 127.0.0.1:1: connection refused; is the server running?\n"
    server.servicer.hold = threading.Event()
    code, out, err = run(capsys, "decide", request_file, "--server", server.target, "--timeout", "0.1")
    late = f"no answer from {server.target} within 0.1 s; --timeout SECONDS sets another deadline"
    assert (code, out, err.splitlines()[1:]) == (1, "", [f"letterwise: {late}"])


@pytest.mark.parametrize("command", ["decide", "stream"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ignored_fields_are_named_on_one_line(
    command: str, form: tuple[str, ...], server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in a field's name is told, wherever the field stands; a body without one is not commented."""
    noul = {"type": "noul", "instructions": "?"}
    questions = {"a": noul, "b": {**noul, "criteria": {"yes": "y", "no\n": "n"}, "askif": {"a": "yes"}}}
    path = tmp_path / "typo.json"
    for body, line in (
        (
            {"state": "s", "questions": questions, "sample": 3},
            "ignored: sample, questions.b.askif, questions.b.criteria.yes, questions.b.criteria.no\\n\n",
        ),
        ({"state": "s", "questions": {"a": noul}}, ""),
    ):
        path.write_text(json.dumps(body))
        code, _, err = run(capsys, command, path, *form, "--server", server.target)
        assert (code, err) == (0, line)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_stream_command_leaves_no_cancelled_call(
    form: tuple[str, ...], server: Any, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client stays until the server has ended the call itself."""
    assert run(capsys, "stream", request_file, *form, "--server", server.target)[0] == 0
    assert server.servicer.left == [False]


def test_wrong_address_or_deadline_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    """Said in the flag's words, with nothing of gRPC's or Python's own."""
    for flag, value, told in (
        ("--server", "http://localhost:50051", "expected host:port, such as localhost:50051"),
        ("--server", "", "expected host:port, such as localhost:50051"),
        ("--timeout", "x", "expected a number of seconds above 0"),
        ("--timeout", "-1", "expected a number of seconds above 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["info", f"{flag}={value}"])
        assert ended.value.code == 2
        assert capfd.readouterr().err.splitlines()[-1] == f"letterwise info: error: argument {flag}: {value!r}: {told}"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "\ncommands:\n    decide " in capfd.readouterr().out


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
        assert gone.stderr.read() == b"ignored: seed, questions.angry.alone\n"
    assert gone.returncode == 1

"""`letterwise-service` as a user runs it: exit codes, one-sentence errors, the last line of `vectors`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from letterwise.display import decision_events, event_lines
from letterwise.replies import read_decision
from letterwise_service import cli, report
from letterwise_service.engine.events import Completed, Diagnostics, PrefixInfo
from letterwise_service.method.answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer, Skipped
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Score
from letterwise_service.method.vectors import FORMAT
from letterwise_service.offline import Decided
from letterwise_service.server.replies import decision_of


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = "import sys; from letterwise_service.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def vector(probability: float) -> dict[str, Any]:
    """One yes/no question under the flat score function, which leaves yes and no equally probable."""
    text = (
        "State:\ns\n\nQuestion: q?\nOptions:\n[A] yes: The statement is true.\n[B] no: The statement is false.\n\n"
        "Answer with the letter of the best option only."
    )
    return {
        "name": f"flat {probability}",
        "score_fn": "flat",
        "request": {"state": "s", "questions": {"a": {"type": "noul", "instructions": "q?"}}},
        "prompts": {"count": 1, "per_question": {"a": [{"letters": 2, "text": text}]}},
        "answers": {"a": {"type": "noul", "noul": probability}},
    }


def vectors_file(folder: Path, *vectors: dict[str, Any]) -> str:
    path = folder / "vectors.json"
    path.write_text(json.dumps({"format": FORMAT, "vectors": vectors}))
    return str(path)


def test_vectors_all_passing_exit_0_with_the_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The count stands alone on the last line."""
    assert cli.main(["vectors", vectors_file(tmp_path, vector(0.5), vector(0.5))]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_vectors_failure_is_named_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed vector has a line with its name, and the count is still the last one."""
    assert cli.main(["vectors", vectors_file(tmp_path, vector(0.5), vector(0.25))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("flat 0.25: answers.a.noul: ")
    assert lines[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["vectors", "/nowhere.json"], "cannot read /nowhere.json: No such file or directory"),
        (["decide", "/nowhere.json"], "cannot read /nowhere.json: No such file or directory"),
    ],
)
def test_file_that_cannot_be_read_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, exit 1."""
    assert cli.main(arguments) == 1
    assert capsys.readouterr().err == f"letterwise-service: {sentence}\n"


def test_vectors_and_help_need_no_mlx(tmp_path: Path) -> None:
    """Neither imports MLX or gRPC, so both start at once and work where those cannot."""
    code = (
        "import sys; from letterwise_service.cli import main\n"
        f"main(['vectors', {vectors_file(tmp_path, vector(0.5))!r}])\n"
        "print([name for name in ('mlx', 'mlx.core', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["1 passed, 0 failed", "[]"]


def test_usage_errors_exit_2() -> None:
    """A flag that does not exist, a setting that is wrong and no command at all are usage errors."""
    assert run().returncode == 2
    assert run("serve", "--nonsense").returncode == 2
    wrong = run("serve", "--port", "70000")
    assert wrong.returncode == 2
    assert wrong.stderr == "letterwise-service: --port '70000': expected a whole number from 0 to 65535\n"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("[]", "letterwise-service: standard input: expected a JSON object"),
        ('{"state": "s", "questions": {"a": {"type": "noul"}}}', "questions.a.instructions: "),
        ('{"state": "s", "questions": {"a": {"type": "maybe", "instructions": "?"}}}', "questions.a.type: "),
    ],
)
def test_decide_refuses_a_bad_body_before_any_model(body: str, sentence: str) -> None:
    """The field is named at once: no model is loaded or fetched for a body that cannot be answered."""
    done = run("decide", "-", "--model", "demo", stdin=body)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_decide_on_a_closed_standard_input_is_one_sentence() -> None:
    """As a job of a scheduler has it."""
    command = [
        sys.executable,
        "-c",
        "import sys; from letterwise_service.entry import main; sys.exit(main())",
        "decide",
        "-",
    ]
    closed = 'exec "$0" "$@" <&-'
    done = subprocess.run(["sh", "-c", closed, *command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "letterwise-service: standard input is closed\n")


def test_serve_on_a_taken_port_is_one_sentence() -> None:
    """The port is tried before any model is loaded; the reason is the system's own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"letterwise-service: cannot listen on 127.0.0.1:{port}: Address already in use (--port)\n"


REQUEST = DecisionRequest(
    "s",
    (
        Noul("refund", "?"),
        Noul("large", "?", ask_if={"refund": ("no", "yes", "\n")}),
        Choice("team", "?", tuple(Option(name) for name in ("a", "b\u2028c", "x" * 90))),
        Score("urgency", "?", ("low", {"é": [1]}, "low")),
        Noul("larger", "?", ask_if={"large": ("yes",)}),
    ),
)
OUTCOMES: tuple[Answer | Skipped, ...] = (
    NoulAnswer("refund", 0.5, 0.5),
    Skipped("large", "refund", "yes", ("no", "maybe", "\n")),
    ChoiceAnswer("team", "b\u2028c", ("a", "b\u2028c", "x" * 90), (0.1, 0.65, 0.25), 0.3, 0.25),
    ScoreAnswer("urgency", 0.125, ("low", {"é": [1]}, "low"), (0.875, 0.1249999, 0.0000001), 0.75, 0.125),
    Skipped("larger", "large", None, ("yes",)),
)
RAN = Diagnostics("rows", "plain", 1, 2, (), 1, PrefixInfo(9, 0, False, "off"), 3, 4, 100, 60, 0, 0, 0.0, 0.5, 0.5, 1.0)


def test_report_has_a_line_per_answer_and_option() -> None:
    """Plain lines: each answer with its options, then the skips and their reasons, then the run."""
    assert list(report.lines(Decided("m", OUTCOMES, RAN))) == [
        "refund: yes, letter mass 0.500",
        "  0.500000 yes",
        "  0.500000 no",
        "team: b\\u2028c, confidence 0.300, letter mass 0.250",
        "  0.100000 a",
        "  0.650000 b\\u2028c",
        f"  0.250000 {'x' * 90}",
        "urgency: 0.125 from 0 to 2, confidence 0.750, letter mass 0.125",
        "  0.875000 0 low",
        '  0.125000 1 {"é": [1]}',
        "  0.000000 2 low",
        "large: skipped, because refund answered yes (asked only for no, maybe or \\n)",
        "larger: skipped, because large was skipped (asked only for yes)",
        "m: 3 passes, 4 forwards, 100 prompt tokens, 0 reused, 60 computed, 1.00 s",
    ]


def test_report_is_what_the_client_prints_of_the_same_decision() -> None:
    """`letterwise decide` and `letterwise-service decide` have one layout, word for word and digit for digit."""
    reply = decision_of(REQUEST, list(OUTCOMES), Completed("m", RAN))
    printed = [line for event in decision_events(read_decision(reply)) for line in event_lines(event)]
    assert printed == list(report.lines(Decided("m", OUTCOMES, RAN)))


def test_decide_names_what_it_ignores_and_what_it_loads(tmp_path: Path) -> None:
    """Both on stderr, before the model is touched: here one that cannot be loaded."""
    body = {"state": "s", "sample": 2, "questions": {"a": {"type": "noul", "instructions": "?", "criteria": {"no": 1}}}}
    done = run("decide", "-", "--model", str(tmp_path), stdin=json.dumps(body))
    told = done.stderr.splitlines()
    assert told[:2] == ["ignored: sample, questions.a.criteria.no", f"loading {tmp_path} …"]
    assert (done.returncode, done.stdout, len(told)) == (1, "", 3)
    quiet = run("decide", "-", "--json", "--model", str(tmp_path), stdin=json.dumps(body))
    assert quiet.stderr.splitlines() == [told[0], told[2]]


def test_help_speaks_only_of_what_a_command_has() -> None:
    """No settings where there are none, none of a server's for one decision, and a plain list of commands."""
    for command in ("fetch", "vectors"):
        assert "etting" not in run(command, "--help").stdout
    shown = run("decide", "--help").stdout
    assert "--model" in shown
    assert "--queue" not in shown
    assert "store" not in shown
    assert "\ncommands:\n    serve " in run("--help").stdout


def test_version_is_printed() -> None:
    """`--version` names the program and a version."""
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("letterwise-service ")


def test_command_without_the_services_packages_says_what_to_install(tmp_path: Path) -> None:
    """The client alone installs the command too: one sentence, and no traceback."""
    hidden = "import sys; sys.modules['prometheus_client'] = None\n"
    code = hidden + "from letterwise_service.entry import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "prometheus_client is missing" in done.stderr
    assert "letterwise[service]" in done.stderr

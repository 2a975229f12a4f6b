"""`make demo`'s program, as a stranger runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
DEMO = [sys.executable, str(Path(__file__).parents[2] / "examples" / "demo.py")]


def alive(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def start() -> subprocess.Popen[str]:
    """The demo in a process group of its own, so that whatever it leaves behind can be seen."""
    return subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_demo_answers_the_ticket_and_leaves_nothing_running(model_path: Path) -> None:
    """All four questions are answered, twice with the same numbers, and every process has ended."""
    with start() as demo:
        said, complained = demo.communicate(timeout=120)
    assert (demo.returncode, complained) == (0, "")
    for line in (
        r"angry: (yes|no), letter mass",
        r"team: \w+, confidence",
        r"urgency: [\d.]+ from 0 to 2",
        r"refund: ",
    ):
        assert re.search(f"^{line}", said, re.MULTILINE), said
    assert re.search(r"^Asked again: (\d+) of the state's \1 tokens were kept", said, re.MULTILINE)
    assert "Every number is the same" in said
    assert not alive(demo.pid)


def test_interrupted_demo_leaves_nothing_running(model_path: Path) -> None:
    """Ctrl-C while the model loads stops the server too."""
    with start() as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == "loading the model …\n"
        time.sleep(1)  # into the load, which nothing can interrupt from inside
        os.killpg(demo.pid, signal.SIGINT)
        _, complained = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert complained.strip() == "demo: interrupted; the server is stopped"
    assert not alive(demo.pid)

"""How events are shown: bars in a terminal of any width, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
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
)
from letterwise.display import PlainDisplay, event_lines, open_display
from letterwise.terminal import MOST_ROWS, TerminalDisplay

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
    text = drawn(100, questions=5)
    lines = lines_of(text)
    assert any("687 of 687 tokens, 512 reused" in line for line in lines)
    assert f"  yes {'█' * 21 + '▊':<87}  25.0%" in lines
    assert f"  no  {'█' * 65 + '▎':<87}  75.0%" in lines
    assert any(line.startswith('  1 {"k": "é"}') and line.endswith("50.0%") for line in lines)
    assert "\\n" in text
    assert "\x1b[2J" not in text
    many = lines[lines.index("many  o15, confidence 0.500, letter mass 0.300") + 1 :]
    assert many[0].startswith("  o15 ")
    assert many[MOST_ROWS] == f"  and {101 - MOST_ROWS} more, 62.3% together"
    assert "refund  skipped, because angry answered no (asked only for yes)" in lines
    assert "again  skipped, because refund was skipped (asked only for yes, no or maybe)" in lines
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


def drawn(width: int, questions: int | None = None) -> str:
    """What a terminal of that width is sent for EVENTS."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width, highlight=False)
    display = TerminalDisplay(console, questions)
    for event in EVENTS:
        display.show(event)
    display.close()
    return out.getvalue()


def lines_of(text: str) -> list[str]:
    """The lines that stay in a terminal: what was erased is gone, and so are the control sequences."""
    kept = [line.rpartition("\x1b[2K")[2] for line in text.split("\n")]
    return [re.sub(r"\x1b\[[?\d;]*[A-Za-z]|\r", "", line).rstrip() for line in kept]


@pytest.mark.parametrize("width", [24, 30, 44, 70, 100, 250])
def test_terminal_bars_use_the_width_and_leave_the_numbers_whole(width: int) -> None:
    """A row is as wide as the terminal, up to 100 cells; names and bars give way, percentages never."""
    lines = lines_of(drawn(width))
    rows = [line for line in lines if re.match(r"  \S.* \d+\.\d%$", line) and "more" not in line]
    assert len(rows) == 2 + 3 + MOST_ROWS
    assert {len(row) for row in rows} == {min(width, 100)}
    assert [row[-5:] for row in rows[:3]] == ["25.0%", "75.0%", "25.0%"]
    assert all("█" in row for row in rows[:2])
    assert all(len(line) <= width for line in lines)
    assert width < 44 or any(re.search(r"687 of 687( tokens)?, 512 reused$", line) for line in lines)


@pytest.mark.parametrize(("questions", "total"), [(5, " of 5"), (None, "")])
def test_terminal_counts_the_answers(questions: int | None, total: str) -> None:
    """From the end of the state's bar on, a line says how many outcomes there are; it is gone at the end."""
    text = drawn(100, questions)
    counted = re.findall(r"reading answers (\d.*?)(?= *[\x1b\r\n])", text)
    assert list(dict.fromkeys(counted)) == [f"{done}{total}" for done in range(6)]
    assert text.rindex("\x1b[2K") > text.rindex("reading answers")


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

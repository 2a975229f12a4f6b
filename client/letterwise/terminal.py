"""The display for a terminal: a bar while the state is read, a count of the answers, and a bar for each option.

Needs rich, which the base install lacks; `display.open_display` imports this module only when it can use it.
"""

from __future__ import annotations

from rich.bar import Bar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from .answers import Answer, ChoiceAnswer, NoulAnswer, Skipped
from .display import headline, option_rows, shown, skip_reason, summary
from .events import Accepted, Answered, Completed, Event, PrefixProgress, WasSkipped

# bars use a terminal's width up to this one: in a longer line the eye loses the row
MOST_CELLS = 100
LEAST_BAR_CELLS = 4
LABEL_CELLS = 36
NUMBER_CELLS = len("100.0%")
# where the long words of the state's progress leave no room for its bar
NARROW_CELLS = 70
# a choice with more options shows its most probable ones; a score always shows its whole scale
MOST_ROWS = 12


class TerminalDisplay:
    """Draws events on a rich console."""

    def __init__(self, console: Console, questions: int | None = None) -> None:
        """questions: how many outcomes to expect, None when that is not known."""
        self._console = console
        self._questions = questions
        self._outcomes = 0
        self._progress: Progress | None = None
        self._count: Progress | None = None

    def show(self, event: Event) -> None:
        match event:
            case Accepted():
                self._line(f"{event.passes} passes, {event.prompt_tokens} prompt tokens planned", "dim")
            case PrefixProgress():
                self._advance(event)
            case Answered(answer=answer):
                self._answer(answer)
            case WasSkipped(skipped=skipped):
                self._skip(skipped)
            case Completed():
                self.close()
                self._line(f"\n{shown(event.model)}: {summary(event.diagnostics)}", "dim")

    def close(self) -> None:
        for running in (self._progress, self._count):
            if running is not None:
                running.stop()
        self._progress = self._count = None

    def _advance(self, event: PrefixProgress) -> None:
        if self._progress is None:
            self._progress = _state_progress(self._console, event)
            self._progress.add_task("state", total=event.total_tokens, reused=event.reused_tokens)
            self._progress.start()
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=event.done_tokens, reused=event.reused_tokens, refresh=True)
        if event.done_tokens >= event.total_tokens:
            self._start_count()

    def _start_count(self) -> None:
        """Ends the state's bar and shows, below all that is printed, how many questions have their outcome."""
        if self._progress is not None or self._count is None:
            self.close()
            self._count = Progress(
                TextColumn("{task.description}", style="dim"), console=self._console, auto_refresh=False, transient=True
            )
            self._count.add_task(self._count_words())
            self._count.start()
            self._count.refresh()

    def _count_words(self) -> str:
        total = "" if self._questions is None else f" of {self._questions}"
        return f"reading answers {self._outcomes}{total}"

    def _count_one(self) -> None:
        self._outcomes += 1
        if self._count is not None:
            self._count.update(self._count.task_ids[0], description=self._count_words(), refresh=True)
        if self._outcomes == self._questions:
            self.close()

    def _answer(self, answer: Answer) -> None:
        self._start_count()
        self._heading(answer.id, headline(answer))
        rows = option_rows(answer)
        kept = _most_probable(rows) if isinstance(answer, ChoiceAnswer) else rows
        self._console.print(_bars(kept, _best(answer, kept), min(self._console.width, MOST_CELLS)))
        if hidden := len(rows) - len(kept):
            rest = 1 - sum(probability for _, probability in kept)
            self._line(f"  and {hidden} more, {max(rest, 0):.1%} together", "dim")
        self._count_one()

    def _skip(self, skipped: Skipped) -> None:
        self._start_count()
        self._heading(skipped.id, skip_reason(skipped))
        self._count_one()

    def _heading(self, name: str, rest: str) -> None:
        self._console.print()
        self._console.print(Text.assemble((shown(name), "bold"), "  ", (rest, "dim")))

    def _line(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False)


def _state_progress(console: Console, event: PrefixProgress) -> Progress:
    narrow = console.width < NARROW_CELLS
    words, unit = ("state", "") if narrow else ("reading the state", " tokens")
    told = f"{{task.completed:.0f}} of {{task.total:.0f}}{unit}, {{task.fields[reused]}} reused"
    longest = f"{words} {event.total_tokens} of {event.total_tokens}{unit}, {event.reused_tokens} reused "
    bar = BarColumn(max(min(console.width, MOST_CELLS) - len(longest), LEAST_BAR_CELLS))
    return Progress(TextColumn(words), bar, TextColumn(told), console=console, auto_refresh=False)


def _bars(rows: list[tuple[str, float]], best: int, cells: int) -> Table:
    """A row for each option: its name, a bar, its probability; the answer's own row stands out.

    cells: the width of a row. Names are cut before the bar is, and the numbers never.
    """
    free = cells - NUMBER_CELLS - 2
    names = [Text(f"  {name}") for name, _ in rows]
    label = max(min(max(name.cell_len for name in names), LABEL_CELLS, free // 2), 1)
    bar_cells = max(free - label, LEAST_BAR_CELLS)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=label, no_wrap=True, overflow="ellipsis")
    table.add_column(width=bar_cells)
    table.add_column(justify="right", min_width=NUMBER_CELLS, no_wrap=True)
    for place, (name, (_, probability)) in enumerate(zip(names, rows, strict=True)):
        name.stylize(style := "bold" if place == best else "")
        bar = Bar(1, 0, probability, width=bar_cells, color="green" if place == best else "blue", bgcolor="grey23")
        table.add_row(name, bar, Text(f"{probability:.1%}", style))
    return table


def _most_probable(rows: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The rows that fit, most probable first when some do not."""
    if len(rows) <= MOST_ROWS:
        return rows
    return sorted(rows, key=lambda row: -row[1])[:MOST_ROWS]


def _best(answer: Answer, rows: list[tuple[str, float]]) -> int:
    """The row to set off: the answer's own, or a score's most probable level."""
    if isinstance(answer, NoulAnswer):
        return 0 if answer.yes else 1
    probabilities = [probability for _, probability in rows]
    return probabilities.index(max(probabilities))

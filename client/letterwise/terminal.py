"""The display for a terminal: a progress bar while the state is read, and a bar for each option.

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

BAR_CELLS = 28
LABEL_CELLS = 36
# a choice with more options shows its most probable ones; a score always shows its whole scale
MOST_ROWS = 12


class TerminalDisplay:
    """Draws events on a rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

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
                self._line(f"\n{shown(event.model)}: {summary(event.diagnostics)}", "dim")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _advance(self, event: PrefixProgress) -> None:
        if self._progress is None:
            self._progress = _state_progress(self._console)
            self._progress.add_task("state", total=event.total_tokens, reused=event.reused_tokens)
            self._progress.start()
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=event.done_tokens, reused=event.reused_tokens, refresh=True)
        if event.done_tokens >= event.total_tokens:
            self.close()

    def _answer(self, answer: Answer) -> None:
        self.close()
        self._heading(answer.id, headline(answer))
        rows = option_rows(answer)
        kept = _most_probable(rows) if isinstance(answer, ChoiceAnswer) else rows
        self._console.print(_bars(kept, _best(answer, kept)))
        if hidden := len(rows) - len(kept):
            rest = 1 - sum(probability for _, probability in kept)
            self._line(f"  and {hidden} more, {max(rest, 0):.1%} together", "dim")

    def _skip(self, skipped: Skipped) -> None:
        self.close()
        self._heading(skipped.id, skip_reason(skipped))

    def _heading(self, name: str, rest: str) -> None:
        self._console.print()
        self._console.print(Text.assemble((shown(name), "bold"), "  ", (rest, "dim")))

    def _line(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False)


def _state_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("reading the state"),
        BarColumn(BAR_CELLS),
        TextColumn("{task.completed:.0f} of {task.total:.0f} tokens, {task.fields[reused]} reused"),
        console=console,
        auto_refresh=False,
    )


def _bars(rows: list[tuple[str, float]], best: int) -> Table:
    """A row for each option: its name, a bar, its probability; the answer's own row stands out."""
    table = Table.grid(padding=(0, 1))
    table.add_column(max_width=LABEL_CELLS, no_wrap=True, overflow="ellipsis")
    table.add_column(width=BAR_CELLS)
    table.add_column(justify="right")
    for place, (name, probability) in enumerate(rows):
        style = "bold" if place == best else ""
        bar = Bar(1, 0, probability, width=BAR_CELLS, color="green" if place == best else "blue", bgcolor="grey23")
        table.add_row(Text(f"  {name}", style), bar, Text(f"{probability:.1%}", style))
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

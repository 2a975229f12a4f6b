"""Prints a decision as it comes: plain lines for a pipe, and the words that the terminal display shares.

Owns the wording of answers and failures. Knows nothing of how they are had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol, TextIO

from .answers import Answer, ChoiceAnswer, Decision, Diagnostics, NoulAnswer, Skipped
from .errors import DeadlineExceeded, LetterwiseError
from .events import Accepted, Answered, Completed, Event, PrefixProgress, WasSkipped
from .questions import Json


class Display(Protocol):
    """Shows events; `close` leaves the terminal as it was."""

    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


class PlainDisplay:
    """One line for each thing that happens, and one for each option."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        for line in event_lines(event):
            print(line, file=self._out)
        self._out.flush()

    def close(self) -> None:
        pass


def open_display(out: TextIO, questions: int | None = None) -> Display:
    """The display that suits `out`: bars in a terminal when rich is installed, plain lines elsewhere.

    questions: how many outcomes to expect, where that is known.
    """
    if not out.isatty():
        return PlainDisplay(out)
    try:
        from rich.console import Console

        from .terminal import TerminalDisplay
    except ImportError:
        return PlainDisplay(out)
    return TerminalDisplay(Console(file=out, highlight=False), questions)


def event_lines(event: Event) -> list[str]:
    """An event as plain lines."""
    match event:
        case Accepted():
            return [f"accepted: {event.passes} passes, {event.prompt_tokens} prompt tokens"]
        case PrefixProgress():
            return [f"state: {event.done_tokens} of {event.total_tokens} tokens, {event.reused_tokens} reused"]
        case Answered(answer=answer):
            return [f"{shown(answer.id)}: {headline(answer)}", *option_lines(answer)]
        case WasSkipped(skipped=skipped):
            return [f"{shown(skipped.id)}: {skip_reason(skipped)}"]
        case Completed():
            return [f"{shown(event.model)}: {summary(event.diagnostics)}"]


def decision_events(decision: Decision) -> list[Event]:
    """A unary reply as the events that a display shows."""
    answers = [Answered(answer) for answer in decision.answers.values()]
    skipped = [WasSkipped(skip) for skip in decision.skipped]
    return [*answers, *skipped, Completed(decision.model, decision.usage, decision.diagnostics)]


def headline(answer: Answer) -> str:
    """An answer in a few words."""
    mass = f"letter mass {answer.letter_mass:.3f}"
    if isinstance(answer, NoulAnswer):
        return f"{'yes' if answer.yes else 'no'}, {mass}"
    if isinstance(answer, ChoiceAnswer):
        return f"{shown(answer.choice)}, confidence {answer.confidence:.3f}, {mass}"
    return f"{answer.score:.3f} from 0 to {len(answer.levels) - 1}, confidence {answer.confidence:.3f}, {mass}"


def option_rows(answer: Answer) -> list[tuple[str, float]]:
    """The listed options of an answer with their probabilities, in the order of the question."""
    if isinstance(answer, NoulAnswer):
        return [("yes", answer.probability), ("no", 1 - answer.probability)]
    if isinstance(answer, ChoiceAnswer):
        return [(shown(name), probability) for name, probability in answer.probabilities.items()]
    levels = zip(answer.levels, answer.probabilities, strict=True)
    return [(f"{index} {shown(level)}", probability) for index, (level, probability) in enumerate(levels)]


def option_lines(answer: Answer) -> list[str]:
    """The options of an answer as plain lines."""
    return [f"  {probability:.6f} {name}" for name, probability in option_rows(answer)]


def skip_reason(skipped: Skipped) -> str:
    """Why a question was not asked."""
    was = "was skipped" if skipped.was is None else f"answered {shown(skipped.was)}"
    return f"skipped, because {shown(skipped.because)} {was} (asked only for {listed(skipped.wanted)})"


def summary(run: Diagnostics) -> str:
    """How a decision ran, in a line."""
    orders = f" in {run.orderings} option orders" if run.orderings > 1 else ""
    work = f"{run.passes} passes{orders}, {run.forwards} forwards"
    tokens = f"{run.prompt_tokens} prompt tokens, {run.prefix.reused_tokens} reused, {run.computed_tokens} computed"
    return f"{work}, {tokens}, {run.total_seconds:.2f} s"


def failure_sentence(problem: LetterwiseError) -> str:
    """A failure as one sentence."""
    if isinstance(problem, DeadlineExceeded):
        return f"{shown(str(problem))}; --timeout SECONDS sets another deadline"
    wait = problem.retry_after_seconds
    again = "" if wait is None else f" (try again in {wait:g} s)"
    return f"{shown(str(problem))}{again}"


def listed(names: Sequence[str]) -> str:
    """Names as a phrase: `a, b or c`."""
    words = [shown(name) for name in names]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shown(value: Json) -> str:
    """A value on one line, with nothing in it that could drive a terminal."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

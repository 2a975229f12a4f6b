"""One question on its way to its answer: the rounds of passes it needs, and what their readings say.

Owns the life of a single question. Runs on the thread that drives it; knows nothing of other questions, of
stages, or of who reads the passes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ..errors import ReadFailed
from .answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer
from .calibration import (
    PUBLISHED,
    Calibration,
    calibrated_yes,
    choice_confidence,
    expected_level,
    letter_probabilities,
    most_probable,
    score_confidence,
)
from .composition import average_by_option, chunks, merged, option_orders, winners
from .passes import Pass, QuestionReader, Reading
from .prompt import LETTERS, Line, instructions_text, listed_options, option_line, pass_text
from .request import Choice, Noul, Question


@dataclass(frozen=True)
class Frame:
    """What the passes of a request have in common; `head` is its `state_message`."""

    head: str
    style: str
    samples: int
    calibration: Calibration = PUBLISHED


def read_question(question: Question, frame: Frame) -> QuestionReader:
    """Yields the question's rounds, takes their readings, returns its answer.

    Raises ReadFailed when a reading lacks a score or holds one that is not finite.
    """
    lines = listed_options(question)
    runs = chunks(len(lines))
    masses: list[float] = []
    within = yield from _read_together(question, frame, [lines[run.start : run.stop] for run in runs], masses)
    probabilities = within[0]
    if len(runs) > 1:
        best = [lines[option] for option in winners(runs, within)]
        final = yield from _read_together(question, frame, [best], masses)
        probabilities = merged(within, final[0])
    return _answer(question, frame.calibration, probabilities, sum(masses) / len(masses))


def first_passes(question: Question, frame: Frame) -> list[Pass]:
    """One pass for each chunk, in the first of its orders."""
    lines = listed_options(question)
    groups = [lines[run.start : run.stop] for run in chunks(len(lines))]
    return [_pass(question, frame, group, option_orders(len(group), frame.samples)[0]) for group in groups]


def longest_winners_pass(question: Question, frame: Frame) -> Pass | None:
    """A pass no shorter than the winners' can be; None when one chunk holds every option.

    Length is counted in UTF-8 bytes: nearer to tokens than characters are, for scripts outside ASCII.
    """
    lines = listed_options(question)
    runs = chunks(len(lines))
    if len(runs) == 1:
        return None
    longest = [max(lines[run.start : run.stop], key=lambda line: _line_bytes(frame.style, line)) for run in runs]
    return _pass(question, frame, longest, range(len(longest)))


def pass_count(question: Question, samples: int) -> int:
    """How many passes the question takes, winners included."""
    runs = len(chunks(len(listed_options(question))))
    return max(samples, 1) * (runs + 1 if runs > 1 else 1)


def _line_bytes(style: str, line: Line) -> int:
    return len(option_line(style, LETTERS[0], line).encode())


def _pass(question: Question, frame: Frame, lines: Sequence[Line], order: Sequence[int]) -> Pass:
    text = pass_text(frame.head, instructions_text(question), [lines[option] for option in order], frame.style)
    return Pass(question.id, text, len(lines))


def _read_together(
    question: Question, frame: Frame, groups: Sequence[Sequence[Line]], masses: list[float]
) -> Generator[tuple[Pass, ...], tuple[Reading, ...], list[tuple[float, ...]]]:
    """Reads lists of options in one round; the distribution within each, and every pass's mass into `masses`."""
    orders = [option_orders(len(lines), frame.samples) for lines in groups]
    listed = zip(groups, orders, strict=True)
    readings = yield tuple(_pass(question, frame, lines, order) for lines, some in listed for order in some)
    masses.extend(reading.letter_mass for reading in readings)
    remaining = iter(readings)
    temperature = frame.calibration.temperature
    return [
        average_by_option(some, [_probabilities(next(remaining), len(order), temperature) for order in some])
        for some in orders
    ]


def _probabilities(reading: Reading, letters: int, temperature: float) -> tuple[float, ...]:
    if len(reading.scores) != letters:
        raise ReadFailed(f"the model gave {len(reading.scores)} letter scores where {letters} were asked")
    if not math.isfinite(reading.letter_mass):
        raise ReadFailed("the model gave a letter mass that is not a finite number")
    return letter_probabilities(reading.scores, temperature)


def _answer(
    question: Question, calibration: Calibration, probabilities: tuple[float, ...], letter_mass: float
) -> Answer:
    if isinstance(question, Noul):
        return NoulAnswer(question.id, calibrated_yes(probabilities[0], calibration), letter_mass)
    if isinstance(question, Choice):
        names = tuple(option.name for option in question.options)
        choice = names[most_probable(probabilities)]
        return ChoiceAnswer(question.id, choice, names, probabilities, choice_confidence(probabilities), letter_mass)
    score, confidence = expected_level(probabilities), score_confidence(probabilities)
    return ScoreAnswer(question.id, score, question.levels, probabilities, confidence, letter_mass)

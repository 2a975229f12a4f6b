"""The answers, unrounded, and the record of a question that was skipped.

Frozen data on any thread; knows nothing of how an answer was read or how it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .request import DecisionRequest, Json


@dataclass(frozen=True)
class NoulAnswer:
    """`probability` of yes, calibrated. `letter_mass`: full-vocabulary probability of the listed letters."""

    id: str
    probability: float
    letter_mass: float


@dataclass(frozen=True)
class ChoiceAnswer:
    """`probabilities` follow the request's `options`; `choice` is the first of the most probable."""

    id: str
    choice: str
    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    confidence: float
    letter_mass: float


@dataclass(frozen=True)
class ScoreAnswer:
    """`score` is the expected level index; `legend` keeps the levels as they came."""

    id: str
    score: float
    legend: tuple[Json, ...]
    probabilities: tuple[float, ...]
    confidence: float
    letter_mass: float


Answer: TypeAlias = NoulAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Skipped:
    """A question that was not asked: question `because` answered `was`, and it wanted one of `wanted`.

    `was` is None when that question was itself skipped.
    """

    id: str
    because: str
    was: str | None
    wanted: tuple[str, ...]


def in_request_order(
    request: DecisionRequest, outcomes: Iterable[Answer | Skipped]
) -> tuple[list[Answer], list[Skipped]]:
    """The answers and the skips of a decision, each in the order of the request's questions."""
    places = {question.id: place for place, question in enumerate(request.questions)}
    ordered = sorted(outcomes, key=lambda outcome: places[outcome.id])
    answers = [outcome for outcome in ordered if not isinstance(outcome, Skipped)]
    return answers, [outcome for outcome in ordered if isinstance(outcome, Skipped)]

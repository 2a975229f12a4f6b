"""Typed replies: the answers, what was skipped, and how a decision ran. Nothing is rounded.

Pure data; knows nothing of protobuf. The fields of the frozen classes from Usage on are those of the messages of the
same meaning in `diagnostics.proto` and `decision.proto`, where each is documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .questions import Json


@dataclass(frozen=True)
class NoulAnswer:
    """`probability` of yes, calibrated.

    letter_mass: how much of the model's next-token probability fell on the question's letters.
    """

    id: str
    probability: float
    letter_mass: float

    @property
    def yes(self) -> bool:
        """Whether yes is at least as probable as no."""
        return self.probability >= 0.5


@dataclass(frozen=True)
class ChoiceAnswer:
    """`choice` is the most probable option; `probabilities` follow the order of the question's options."""

    id: str
    choice: str
    probabilities: Mapping[str, float]
    confidence: float
    letter_mass: float


@dataclass(frozen=True)
class ScoreAnswer:
    """`score` is the expected index of a level, from 0; `levels` are as the question had them."""

    id: str
    score: float
    probabilities: tuple[float, ...]
    levels: tuple[Json, ...]
    confidence: float
    letter_mass: float

    @property
    def most_likely(self) -> int:
        """The index of the most probable level; the lowest when several are."""
        return self.probabilities.index(max(self.probabilities))


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


@dataclass(frozen=True)
class Usage:
    """The size of a request in tokens: those that were read, and those that were generated (none by a decision)."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class PrefixDiagnostics:
    """How the state's prefix was had."""

    tokens: int
    reused_tokens: int
    stored: bool
    tier: str


@dataclass(frozen=True)
class Diagnostics:
    """How a decision ran. Seconds are wall time."""

    readout: str
    path: str
    prompt_style: str
    prompt_format_version: int
    stages: int
    skipped: tuple[Skipped, ...]
    orderings: int
    prefix: PrefixDiagnostics
    passes: int
    forwards: int
    prompt_tokens: int
    computed_tokens: int
    padded_tokens: int
    neutralized_tokens: int
    queue_seconds: float
    prefix_seconds: float
    tails_seconds: float
    total_seconds: float
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """The answers to a request's questions, by question id in the order of the request."""

    model: str
    answers: Mapping[str, Answer]
    skipped: tuple[Skipped, ...]
    usage: Usage
    diagnostics: Diagnostics

    def __getitem__(self, question_id: str) -> Answer:
        """The answer to a question; KeyError says so when it was skipped."""
        for skip in self.skipped:
            if skip.id == question_id:
                raise KeyError(f"{question_id!r} was skipped because of {skip.because!r}")
        return self.answers[question_id]


@dataclass(frozen=True)
class Prewarmed:
    """A state that has been read before its questions arrive."""

    model: str
    prompt_tokens: int
    reused_tokens: int
    stored: bool
    tier: str
    diagnostics: Diagnostics

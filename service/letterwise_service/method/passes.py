"""What travels between the method and whoever reads passes: a pass out, its reading back.

Frozen data on any thread; knows nothing of tokens or of how a pass is read.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from .answers import Answer


@dataclass(frozen=True)
class Pass:
    """One prompt to read: the listed letters are the first `letters` of the 52.

    index: the place of the pass in its decision, which tells passes of equal text apart.
    """

    question_id: str
    text: str  # the whole user message, "State:\n…\n\nQuestion: … only."
    letters: int
    index: int = 0


@dataclass(frozen=True)
class Reading:
    """What the model gave for one pass: a score per listed letter and their total probability."""

    scores: tuple[float, ...]
    letter_mass: float


# Yields rounds of passes (all chunks x orders, then the winners), takes their readings in order, returns the answer.
QuestionReader: TypeAlias = Generator[tuple[Pass, ...], tuple[Reading, ...], Answer]

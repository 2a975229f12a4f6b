"""What the tests of the method share: the reference vectors, and a driver that reads passes with a fake model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.method.answers import Answer, Skipped
from letterwise_service.method.decision import Decision, Pass, Reading
from letterwise_service.method.request import DecisionRequest

Score = Callable[[str, int], float]
Decide = Callable[..., tuple[dict[str, Answer | Skipped], list[Pass]]]


@pytest.fixture(scope="session")
def vectors() -> Any:
    """The reference vectors, parsed."""
    return json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def decide() -> Decide:
    """Drives a request to its end; the outcomes by id in the order known, and the passes in the order sent."""

    def drive(
        request: DecisionRequest, score: Score, style: str = "bracket", mass: float = 0.5
    ) -> tuple[dict[str, Answer | Skipped], list[Pass]]:
        decision = Decision(request, style=style)
        outcomes: dict[str, Answer | Skipped] = {}
        sent: list[Pass] = []
        while passes := decision.ready():
            for one in passes:
                sent.append(one)
                scores = tuple(score(one.text, letter) for letter in range(one.letters))
                outcomes.update({known.id: known for known in decision.take(one, Reading(scores, mass))})
        assert decision.finished
        return outcomes, sent

    return drive

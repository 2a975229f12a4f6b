"""From letter scores to probabilities, and from probabilities to what an answer reports of them.

Owns the constants of the readout. Pure functions on any thread; knows nothing of questions, prompts or passes.
Sources: the settings that the OpenJev helper publishes (temperature 0.85, yes/no slope 1.829074, bias 0), and
the Jev definitions of confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ReadFailed

TEMPERATURE = 0.85
NOUL_TEMPERATURE = 1.829074
NOUL_BIAS = 0.0
NOUL_CLAMP = 1e-4


@dataclass(frozen=True)
class Calibration:
    """What a decision's scores are read with; the published constants unless told otherwise."""

    temperature: float = TEMPERATURE
    noul_temperature: float = NOUL_TEMPERATURE
    noul_bias: float = NOUL_BIAS


PUBLISHED = Calibration()


def letter_probabilities(scores: Sequence[float], temperature: float = TEMPERATURE) -> tuple[float, ...]:
    """softmax(score / temperature) over the listed letters. Raises ReadFailed unless every score is finite."""
    if not scores or not all(math.isfinite(score) for score in scores):
        raise ReadFailed("the model gave a letter score that is not a finite number")
    top = max(scores)
    weights = [math.exp((score - top) / temperature) for score in scores]
    return normalized(weights)


def normalized(weights: Sequence[float]) -> tuple[float, ...]:
    """`weights` divided by their sum."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def calibrated_yes(probability: float, calibration: Calibration = PUBLISHED) -> float:
    """The calibrated probability of yes: sigmoid(logit(p) / noul_temperature + noul_bias), p kept off 0 and 1."""
    kept = min(max(probability, NOUL_CLAMP), 1.0 - NOUL_CLAMP)
    logit = math.log(kept / (1.0 - kept))
    shifted = logit / calibration.noul_temperature + calibration.noul_bias
    # The exponent stays where a float can hold its power, whatever the settings.
    return 1.0 / (1.0 + math.exp(-max(shifted, -700.0)))


def most_probable(probabilities: Sequence[float]) -> int:
    """The index of the highest probability; the first of them on a tie."""
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def expected_level(probabilities: Sequence[float]) -> float:
    """The mean level index under `probabilities`."""
    return sum(index * probability for index, probability in enumerate(probabilities))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(max p - 1/n) / (1 - 1/n); 1 for a single option."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    return (max(probabilities) - 1.0 / count) / (1.0 - 1.0 / count)


def score_confidence(probabilities: Sequence[float]) -> float:
    """max(0, 1 - sum p_i |i - mode| / mean |i - (n-1)/2|); 1 for a single level."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    mode = most_probable(probabilities)
    spread = sum(probability * abs(index - mode) for index, probability in enumerate(probabilities))
    uniform = sum(abs(index - (count - 1) / 2.0) for index in range(count)) / count
    return max(0.0, 1.0 - spread / uniform)

"""Scores to probabilities, and what answers report of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letterwise_service.errors import ReadFailed
from letterwise_service.method.calibration import (
    calibrated_yes,
    choice_confidence,
    expected_level,
    letter_probabilities,
    most_probable,
    score_confidence,
)

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=52)
weights = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60).filter(lambda some: sum(some) > 1e-3)


@given(scores)
def test_letter_probabilities_form_a_distribution(some: list[float]) -> None:
    """They sum to 1, none is negative, and a higher score is never less probable."""
    probabilities = letter_probabilities(some)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert min(probabilities) >= 0.0
    assert probabilities[some.index(max(some))] == max(probabilities)


def test_letter_probabilities_divide_by_the_temperature() -> None:
    """A gap of 0.85 is one e-fold."""
    first, second = letter_probabilities([0.85, 0.0])
    assert first / second == pytest.approx(math.e, abs=1e-12)


@pytest.mark.parametrize("gap", [1e308, 1e5])
def test_letter_probabilities_survive_wide_gaps(gap: float) -> None:
    """Scores far apart give 1 and 0, not an overflow."""
    assert letter_probabilities([gap, -gap]) == (1.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_letter_probabilities_refuse_what_is_not_finite(bad: float, place: int) -> None:
    """One score that is not a number fails the read, wherever it stands."""
    some = [0.0, 1.0, 2.0]
    some[place] = bad
    with pytest.raises(ReadFailed):
        letter_probabilities(some)


def test_letter_probabilities_refuse_no_scores() -> None:
    """No score at all is a missing score."""
    with pytest.raises(ReadFailed):
        letter_probabilities([])


def test_calibrated_yes_flattens_and_clamps() -> None:
    """The slope is 1/1.829074 in logits; 0 and 1 read as 1e-4 and 1 - 1e-4."""
    assert calibrated_yes(0.5) == 0.5
    expected = 1 / (1 + math.exp(-math.log(0.9 / 0.1) / 1.829074))
    assert calibrated_yes(0.9) == pytest.approx(expected, abs=1e-15)
    assert calibrated_yes(0.0) == calibrated_yes(1e-5) == calibrated_yes(1e-4)
    assert calibrated_yes(1.0) == calibrated_yes(1 - 1e-5)
    assert calibrated_yes(0.0) == pytest.approx(0.006461147500351798, abs=1e-12)


@given(st.floats(0.0, 1.0))
def test_calibrated_yes_is_symmetric(probability: float) -> None:
    """Yes and no trade places, so their calibrated probabilities sum to 1."""
    assert calibrated_yes(probability) + calibrated_yes(1.0 - probability) == pytest.approx(1.0, abs=1e-9)


def test_most_probable_is_the_first_on_a_tie() -> None:
    """Ties go to the earlier option."""
    assert most_probable([0.2, 0.4, 0.4]) == 1


@pytest.mark.parametrize(
    ("probabilities", "confidence"), [([1.0], 1.0), ([0.5, 0.5], 0.0), ([1.0, 0.0, 0.0], 1.0), ([0.25, 0.75], 0.5)]
)
def test_choice_confidence_runs_from_chance_to_certainty(probabilities: list[float], confidence: float) -> None:
    """0 at equal probabilities, 1 when certain or alone."""
    assert choice_confidence(probabilities) == pytest.approx(confidence, abs=1e-15)


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [([1.0], 1.0), ([0.0, 1.0, 0.0], 1.0), ([0.5, 0.0, 0.5], 0.0), ([0.5, 0.5], 0.0), ([0.1, 0.8, 0.1], 0.7)],
)
def test_score_confidence_falls_with_the_spread(probabilities: list[float], confidence: float) -> None:
    """1 for one certain level, never below 0; the spread is measured from the mode."""
    assert score_confidence(probabilities) == pytest.approx(confidence, abs=1e-12)


@given(weights)
def test_confidences_stay_between_zero_and_one(some: list[float]) -> None:
    """Any distribution has confidences in range and an expected level on its scale."""
    probabilities = [weight / sum(some) for weight in some]
    assert -1e-9 <= choice_confidence(probabilities) <= 1 + 1e-9
    assert 0.0 <= score_confidence(probabilities) <= 1 + 1e-9
    assert -1e-9 <= expected_level(probabilities) <= len(some) - 1 + 1e-9

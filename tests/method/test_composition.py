"""Many options from few letters: chunks, orders, and the merge over winners."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from letterwise_service.method.answers import ChoiceAnswer
from letterwise_service.method.composition import MAX_OPTIONS, chunks, merged, option_orders
from letterwise_service.method.request import Choice, DecisionRequest, Option


@given(st.integers(1, MAX_OPTIONS))
def test_chunks_cover_every_option_once(count: int) -> None:
    """In order, each of at most 52, no more chunks than letters, near-equal in size."""
    runs = chunks(count)
    assert [option for run in runs for option in run] == list(range(count))
    assert max(len(run) for run in runs) <= 52
    assert len(runs) <= 52
    assert len({len(run) for run in runs[:-1]}) <= 1
    assert (len(runs) == 1) == (count <= 52)


@pytest.mark.parametrize(("count", "sizes"), [(52, [52]), (53, [27, 26]), (105, [35] * 3), (300, [50] * 6)])
def test_chunks_are_near_equal(count: int, sizes: list[int]) -> None:
    """53 options are 27 and 26, not 52 and 1."""
    assert [len(run) for run in chunks(count)] == sizes


@pytest.mark.parametrize("count", [0, MAX_OPTIONS + 1])
def test_chunks_refuse_what_two_rounds_cannot_hold(count: int) -> None:
    """No options, or more than 52 chunks of 52."""
    with pytest.raises(ValueError, match="2704"):
        chunks(count)


def test_orders_are_the_given_one_for_a_single_sample() -> None:
    """One sample never shuffles; more are shuffled by their own number."""
    assert option_orders(4, 1) == [[0, 1, 2, 3]]
    assert option_orders(4, 2) == [[2, 0, 1, 3], [3, 0, 2, 1]]


def test_merge_scales_each_chunk_by_its_winner() -> None:
    """p(i) goes with final(chunk) * within(i) / within(winner)."""
    assert merged([[0.5, 0.5], [0.2, 0.8]], [0.6, 0.4]) == pytest.approx([0.6 / 1.7, 0.6 / 1.7, 0.1 / 1.7, 0.4 / 1.7])


def _score_by_name(scores: dict[str, float]) -> Any:
    """A fake model whose score depends on the option's name alone, wherever it is listed."""

    def score(prompt: str, index: int) -> float:
        return scores[re.findall(r"^\[\w\] (\w+): $", prompt, flags=re.MULTILINE)[index]]

    return score


def _choice(names: list[str], samples: int) -> DecisionRequest:
    return DecisionRequest("s", (Choice("q", "?", tuple(Option(name) for name in names)),), samples)


option_scores = st.lists(st.floats(-20.0, 5.0), min_size=1, max_size=130)


@settings(max_examples=60, deadline=None)
@given(some=option_scores, samples=st.integers(1, 3))
def test_composition_equals_one_softmax_over_all_options(decide: Any, some: list[float], samples: int) -> None:
    """When scores do not depend on the prompt, chunks and winners give what one softmax over all would."""
    scores = {f"o{index}": score for index, score in enumerate(some)}
    outcomes, _ = decide(_choice(list(scores), samples), _score_by_name(scores))
    powers = [math.exp((score - max(some)) / 0.85) for score in some]
    expected = [power / sum(powers) for power in powers]
    assert outcomes["q"].probabilities == pytest.approx(expected, abs=1e-12)
    assert sum(outcomes["q"].probabilities) == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(some=option_scores, random=st.randoms(use_true_random=False))
def test_composition_does_not_depend_on_the_order_of_options(decide: Any, some: list[float], random: Any) -> None:
    """The same options listed in another order have the same probabilities by name."""
    scores = {f"o{index}": score for index, score in enumerate(some)}
    names = list(scores)
    random.shuffle(names)
    answers: list[ChoiceAnswer] = []
    for listed in (list(scores), names):
        outcomes, _ = decide(_choice(listed, 1), _score_by_name(scores))
        answers.append(outcomes["q"])
    one, other = (dict(zip(answer.names, answer.probabilities, strict=True)) for answer in answers)
    assert all(one[name] == pytest.approx(other[name], abs=1e-12) for name in scores)
    assert answers[0].confidence == pytest.approx(answers[1].confidence, abs=1e-12)

"""How a token is chosen: keys of a row's own, the nucleus, and the global random state left alone."""

from __future__ import annotations

from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.chat.sampling import Draws, likeliest, nucleus, sampler_of
from tests.engine.chat.chats import request

PROBABILITIES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
SCORES = mx.log(mx.array([PROBABILITIES]))


def drawn(sampler: Any, count: int) -> list[int]:
    return [int(sampler(SCORES).item()) for _ in range(count)]


def test_same_seed_draws_the_same_whatever_else_is_drawn() -> None:
    """Draws follow from the seed alone: other rows' draws and the global state between them change nothing."""
    plain = drawn(Draws(1.0, 1.0, 7), 40)
    one, other, beside = Draws(1.0, 1.0, 7), Draws(1.0, 1.0, 8), []
    for _ in range(40):
        mx.random.seed(len(beside))
        mx.eval(mx.random.normal((3,)), other(SCORES))
        beside += drawn(one, 1)
    assert beside == plain
    assert drawn(Draws(1.0, 1.0, 8), 40) != plain
    assert len(set(plain)) > 2


def test_draws_leave_the_global_random_state() -> None:
    """Not a bit of MLX's own state moves, with the nucleus and without."""
    mx.random.seed(3)
    before = mx.random.state[0].tolist()
    drawn(Draws(0.7, 0.9, 1), 5)
    drawn(Draws(0.7, 1.0, 1), 5)
    assert mx.random.state[0].tolist() == before


def test_draws_follow_the_probabilities() -> None:
    """Over many draws, tokens come as often as they are likely, at the temperature."""
    found = drawn(Draws(1.0, 1.0, 5), 800)
    assert [round(found.count(i) / 800 - p, 1) for i, p in enumerate(PROBABILITIES)] == [0] * 5
    cold = drawn(Draws(0.25, 1.0, 5), 300)
    assert cold.count(0) > 270


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.3, [0]), (0.5, [0]), (0.51, [0, 1]), (0.75, [0, 1]), (0.9, [0, 1, 2, 3, 4]), (0.99, [0, 1, 2, 3, 4])],
)
def test_nucleus_is_the_fewest_likeliest(top_p: float, kept: list[int]) -> None:
    """The likeliest tokens that together have the probability, those as likely as the last among them."""
    turned = SCORES[:, ::-1]
    assert [i for i, x in enumerate(nucleus(SCORES, top_p)[0].tolist()) if x > -1e30] == kept
    assert [4 - i for i, x in enumerate(nucleus(turned, top_p)[0].tolist()) if x > -1e30] == kept[::-1]


def test_draws_stay_in_the_nucleus() -> None:
    """With a top_p that two tokens reach no third one comes."""
    assert set(drawn(Draws(1.0, 0.6, 3), 200)) == {0, 1}


def test_temperature_of_nothing_is_greedy() -> None:
    """Zero, and what float32 cannot tell from it, take the likeliest token, by the same function for every row."""
    for temperature in (0.0, 1e-300):
        assert sampler_of(request(temperature=temperature, seed=1)) is likeliest
    assert likeliest(SCORES).tolist() == [0]


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 - 1])
def test_every_seed_starts_draws(seed: int) -> None:
    """The whole range of the contract's 64 bits."""
    assert drawn(sampler_of(request(temperature=1.0, seed=seed)), 5) == drawn(Draws(1.0, 1.0, seed), 5)


def test_request_without_a_seed_draws_anew() -> None:
    """Two such requests do not repeat each other."""
    first, second = (drawn(sampler_of(request(temperature=1.0)), 60) for _ in range(2))
    assert first != second

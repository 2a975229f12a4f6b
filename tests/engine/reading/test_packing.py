"""Which tails share a forward: nothing lost, nothing too large, and a tail's width its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letterwise_service.engine.reading.packing import (
    FORWARD_TOKENS,
    MIN_WIDTH,
    WIDTH_STEP,
    canonical_width,
    plan_forwards,
)

LENGTHS = st.lists(st.integers(1, 400), max_size=60)


@given(LENGTHS, st.integers(1, 200))
def test_plan_reads_every_tail_once(lengths: list[int], rows_limit: int) -> None:
    """Each tail is in exactly one forward, or alone; alone are those longer than a forward and no others."""
    plan = plan_forwards(lengths, rows_limit=rows_limit)
    planned = [*plan.alone, *(i for forward in plan.shared for i in forward.rows)]
    assert sorted(planned) == list(range(len(lengths)))
    assert sorted(plan.alone) == [i for i, length in enumerate(lengths) if length > FORWARD_TOKENS]


@given(LENGTHS, st.integers(1, 200))
def test_forwards_stay_within_their_tokens(lengths: list[int], rows_limit: int) -> None:
    """No forward has more than 128 tokens, padding included, nor more rows than the limit; no row is cut."""
    for forward in plan_forwards(lengths, rows_limit=rows_limit).shared:
        assert 1 <= len(forward.rows) <= rows_limit
        assert len(forward.rows) * forward.width <= FORWARD_TOKENS
        assert all(lengths[i] <= forward.width for i in forward.rows)


@given(LENGTHS, st.randoms(use_true_random=False))
def test_width_of_a_tail_is_its_own(lengths: list[int], rng: object) -> None:
    """A tail's width follows from its length alone, whatever its companions and their order."""
    widths = {i: f.width for f in plan_forwards(lengths).shared for i in f.rows}
    assert widths == {i: canonical_width(n) for i, n in enumerate(lengths) if n <= FORWARD_TOKENS}
    order = list(range(len(lengths)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    turned = {order[i]: f.width for f in plan_forwards([lengths[i] for i in order]).shared for i in f.rows}
    assert turned == widths


@given(LENGTHS)
def test_forwards_are_as_few_as_their_widths_allow(lengths: list[int]) -> None:
    """Tails of one width fill their forwards, longest widths first."""
    shared = plan_forwards(lengths).shared
    for width in {forward.width for forward in shared}:
        rows = [len(forward.rows) for forward in shared if forward.width == width]
        assert len(rows) == -(-sum(rows) // (FORWARD_TOKENS // width))
    assert [forward.width for forward in shared] == sorted((forward.width for forward in shared), reverse=True)


@given(st.integers(1, FORWARD_TOKENS))
def test_canonical_width_is_the_next_step(length: int) -> None:
    """At least the length and the smallest width, a whole number of steps, and no more than needed."""
    width = canonical_width(length)
    assert max(length, MIN_WIDTH) <= width <= FORWARD_TOKENS
    assert width % WIDTH_STEP == 0
    assert width - length < WIDTH_STEP or width == MIN_WIDTH


@pytest.mark.parametrize(("length", "width"), [(1, 32), (32, 32), (33, 40), (40, 40), (64, 64), (127, 128), (128, 128)])
def test_canonical_width_of_known_lengths(length: int, width: int) -> None:
    """The widths that kept numbers depend on: a change here changes bits and raises READER_VERSION."""
    assert canonical_width(length) == width

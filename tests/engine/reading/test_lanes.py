"""A forward that runs alone, spread over two streams: which part goes where, and that no bit shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from letterwise_service.engine.backend import mx, nn
from letterwise_service.engine.reading import kernels, lanes


@pytest.fixture(scope="module")
def streams() -> list[Any]:
    return [mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)]


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    kernels.install()
    yield
    kernels.uninstall()


def on(streams: list[Any], x: Any, sizes: list[int]) -> list[int]:
    """The lane on which each product of `x` with so many columns is built."""
    found: list[int] = []
    for columns in sizes:
        lanes.product(x, columns, lambda: found.append(streams.index(mx.default_stream(mx.default_device()))))
    return found


def test_products_of_one_input_go_to_the_lane_with_fewest_columns(streams: list[Any]) -> None:
    """Queries on one lane, keys and values on the other; gate and up apart; a new input begins anew."""
    x, y = mx.zeros((1, 4)), mx.zeros((1, 4))
    with lanes.spread(streams):
        assert on(streams, x, [576, 192, 192]) == [0, 1, 1]
        assert on(streams, y, [1536, 1536]) == [0, 1]
        assert on(streams, x, [576]) == [0]
    assert on(streams, x, [576, 576]) == [0, 0]


def test_halves_meet_at_the_step_and_are_joined_in_order(streams: list[Any]) -> None:
    """Two calls, one after the other, whose results are one array; a single call without lanes or for a small size."""
    calls: list[tuple[int, int]] = []

    def part(start: int, end: int) -> Any:
        calls.append((start, end))
        return mx.arange(start, end)

    with lanes.spread(streams):
        assert lanes.halves(100, part, axis=0, step=16).tolist() == list(range(100))
        lanes.halves(31, part, axis=0, step=16)
    lanes.halves(100, part, axis=0, step=16)
    assert calls == [(0, 48), (48, 100), (0, 31), (0, 100)]


@pytest.mark.parametrize(("rows", "columns", "bias"), [(128, 576, False), (64, 192, True), (16, 4100, False)])
def test_linear_layer_has_the_same_bits_when_spread(rows: int, columns: int, bias: bool, streams: list[Any]) -> None:
    """A layer of the trunk is a whole product on one lane, a head two halves of one: the bits are those of one."""
    layer = nn.Linear(576, columns, bias=bias)
    x = mx.array(np.random.default_rng(5).standard_normal((1, rows, 576), dtype=np.float32))
    alone = layer(x)
    mx.eval(alone)
    with lanes.spread(streams):
        layer(x)
        spread = layer(x)
    mx.eval(spread)
    assert np.array_equal(np.array(alone).view(np.int32), np.array(spread).view(np.int32))


@pytest.mark.parametrize(("rows", "heads"), [(2, 3), (3, 2), (1, 3), (1, 1)])
def test_attention_has_the_same_bits_when_spread(rows: int, heads: int, streams: list[Any]) -> None:
    """Split by rows, by heads or not at all."""
    draw = np.random.default_rng(6)
    shapes = [(rows, heads * 2, 40, 16), (1, heads, 90, 16), (1, heads, 90, 16), (rows, heads, 40, 16)]
    q, prefix_k, prefix_v, own = (mx.array(draw.standard_normal(shape, dtype=np.float32)) for shape in shapes)
    found = []
    for over in ((), streams):
        joined, values = kernels.join_shared((prefix_k, prefix_v), (own, own))
        with lanes.spread(over):
            found.append(kernels.attention(q, joined, values, scale=0.25, mask="causal"))
        mx.eval(found[-1])
        kernels.forget_shared()
    assert np.array_equal(np.array(found[0]).view(np.int32), np.array(found[1]).view(np.int32))

"""Which stream takes which part of a forward that runs alone: `spread` while its graph is built.

Engine thread. Linear layers that read the same input, such as gate and up, are whole products on a lane each, so their
shapes and bits are those of one lane; attention is split by rows or by heads. Knows nothing of what is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..backend import mx

# The streams that the forward being built is spread over; empty for a forward that has one of its own.
_lanes: tuple[Any, ...] = ()
# The input of the last product, and the columns that each lane has been given of it.
_input: Any = None
_columns: list[int] = []


@contextlib.contextmanager
def spread(lanes: Sequence[Any]) -> Iterator[None]:
    """Build what is built inside the block over all `lanes`; the bits are those of one (`probe.py` makes sure)."""
    global _lanes, _input  # noqa: PLW0603 - the engine thread builds one forward at a time
    _lanes = tuple(lanes) if len(lanes) == 2 else ()
    try:
        yield
    finally:
        _lanes, _input = (), None


def active() -> bool:
    """Whether a forward is being spread."""
    return bool(_lanes)


def product(x: Any, columns: int, build: Callable[[], Any]) -> Any:
    """A product of `x` that gives so many columns, on the lane that has the fewest of this input yet."""
    global _input, _columns
    if not _lanes:
        return build()
    if x is not _input:
        _input, _columns = x, [0] * len(_lanes)
    lane = _columns.index(min(_columns))
    _columns[lane] += columns
    with mx.stream(_lanes[lane]):
        return build()


def halves(size: int, build: Callable[[int, int], Any], axis: int, *, step: int = 1) -> Any:
    """`build(start, end)` for both halves of `size`, one on each lane, joined along `axis`.

    step: the halves meet at a multiple of it.
    """
    if not _lanes or size < 2 * step:
        return build(0, size)
    middle = (size + 1) // 2 // step * step
    found = []
    for lane, (start, end) in zip(_lanes, ((0, middle), (middle, size)), strict=True):
        with mx.stream(lane):
            found.append(build(start, end))
    return mx.concatenate(found, axis=axis)

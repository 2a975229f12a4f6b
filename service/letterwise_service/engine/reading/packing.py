"""Which tails share a forward.

Pure arithmetic, no MLX. A tail runs at its canonical width: its own length rounded up to WIDTH_STEP tokens.
Only tails of one width share a forward, so the shape of a row's products depends on the tail alone and never on
its companions; that is what keeps a question's bits the same beside other questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Every forward carries at most this many tokens, whatever the load.
FORWARD_TOKENS = 128
WIDTH_STEP = 8
# Below this a BLAS may take another kernel for one row than for several, and give other bits.
MIN_WIDTH = 32


@dataclass(frozen=True)
class Forward:
    """Tails `rows` (indices into the lengths that were planned), each padded on the right to `width` tokens."""

    rows: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Plan:
    """`shared` forwards read through views; `alone` tails are longer than a forward and run on a copy."""

    shared: tuple[Forward, ...]
    alone: tuple[int, ...]


def canonical_width(length: int) -> int:
    """`length` rounded up to a whole number of WIDTH_STEP tokens, at least MIN_WIDTH, within a forward."""
    return min(max(-(-length // WIDTH_STEP) * WIDTH_STEP, MIN_WIDTH), FORWARD_TOKENS)


def plan_forwards(lengths: Sequence[int], *, rows_limit: int = FORWARD_TOKENS) -> Plan:
    """Group tails of `lengths` tokens, longest first; ties keep their order. `rows_limit` 1 gives each its own."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    alone = tuple(i for i in order if lengths[i] > FORWARD_TOKENS)
    by_width: dict[int, list[int]] = {}
    for i in order:
        if lengths[i] <= FORWARD_TOKENS:
            by_width.setdefault(canonical_width(lengths[i]), []).append(i)
    shared = [
        Forward(tuple(members[start : start + rows]), width)
        for width, members in by_width.items()
        for rows in [max(1, min(FORWARD_TOKENS // width, rows_limit))]
        for start in range(0, len(members), rows)
    ]
    return Plan(tuple(shared), alone)

"""The matrix products of a decision, and nothing else of it: same shapes, same weights, same streams, same steps.

Engine thread of the worker. Covers models of mlx-lm whose layers are linear and whose attention is plain, as the
embedded model is. Attention counts as the products that the engine's own operation makes: every query of a key/value
head, of all rows, against the shared prefix, and each row's queries against its own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from letterwise_service.engine.backend import mx, nn
from letterwise_service.engine.reading.packing import FORWARD_TOKENS, plan_forwards
from letterwise_service.engine.reading.reader import Reader

_HEAD_ROWS = 16  # positions of one product with the head


@dataclass(frozen=True)
class Unit:
    """One forward: `rows` rows of `width` tokens over `past` cached ones; `scored` answer positions, 0 in a prefix."""

    rows: int
    width: int
    past: int
    scored: int = 0


def of_decision(reader: Reader, prefix: int, tails: Sequence[Sequence[int]], *, kept: bool) -> list[Unit]:
    """The forwards of a decision, in the reader's order. Tails longer than a forward are not covered."""
    chunks = [Unit(1, min(FORWARD_TOKENS, prefix - start), start) for start in range(0, prefix, FORWARD_TOKENS)]
    plan = plan_forwards([len(tail) for tail in tails], rows_limit=reader.manner.rows_limit)
    if plan.alone:
        raise ValueError("a tail is longer than a forward")
    shared = [Unit(len(forward.rows), forward.width, prefix, len(forward.rows)) for forward in plan.shared]
    return ([] if kept else chunks) + shared


def prepared(reader: Reader, units: Sequence[Unit]) -> list[list[Any]]:
    """The products of the units, not yet evaluated: step by step, a forward for each of the reader's streams."""
    prefills = [unit for unit in units if not unit.scored]
    tails = [unit for unit in units if unit.scored]
    lanes = reader.lanes
    steps = [group[start : start + lanes] for group in (prefills, tails) for start in range(0, len(group), lanes)]
    return [_step(reader, step) for step in steps]


def run(steps: Sequence[list[Any]]) -> None:
    for step in steps:
        mx.eval(step)


def _step(reader: Reader, units: Sequence[Unit]) -> list[Any]:
    built: list[Any] = []
    for stream, unit in zip(reader._streams, units, strict=False):
        with mx.stream(stream):
            built.append(body(reader.model, unit))
    scored = sum(unit.scored for unit in units)
    return [*built, *(head(reader, scored) if scored else ())]


def body(model: Any, unit: Unit) -> Any:
    """The products of every layer, one after the other."""
    return chain([*linear(model, unit), *attention(model, unit)])


def chain(products: Sequence[tuple[Any, Any]]) -> Any:
    """Left times right, each product begun after the one before, so that no more than one result is held."""
    last = None
    for left, right in products:
        last = (left if last is None else mx.depends([left], [last])[0]) @ right
    return last


def linear(model: Any, unit: Unit) -> list[tuple[Any, Any]]:
    """Every linear layer inside the model's body with an input of the unit's size.

    Of a prefix's last layer only keys and values are wanted, and mlx computes nothing else.
    """
    inputs: dict[int, Any] = {}
    pairs = []
    for index, block in enumerate(model.layers):
        wanted = unit.scored or index < len(model.layers) - 1
        for name, layer in block.named_modules():
            if isinstance(layer, nn.Linear) and (wanted or name.endswith(("k_proj", "v_proj"))):
                size = layer.weight.shape[1]
                if size not in inputs:
                    inputs[size] = _filled(unit.rows, unit.width, size)
                pairs.append((inputs[size], layer.weight.T))
    return pairs


def attention(model: Any, unit: Unit) -> list[tuple[Any, Any]]:
    """Scores and weighted values of every layer, over the prefix and over the unit's own tokens."""
    one = model.layers[0].self_attn
    heads, kv_heads = one.n_heads, one.n_kv_heads
    size = model.layers[0].self_attn.q_proj.weight.shape[0] // heads
    queries = heads // kv_heads * unit.width
    own_keys = _filled(unit.rows, kv_heads, unit.width, size)
    own = [
        (_filled(unit.rows, kv_heads, queries, size), own_keys.swapaxes(-1, -2)),
        (_filled(unit.rows, kv_heads, queries, unit.width), own_keys),
    ]
    if unit.past:
        keys = _filled(kv_heads, unit.past, size)
        own += [
            (_filled(kv_heads, unit.rows * queries, size), keys.swapaxes(-1, -2)),
            (_filled(kv_heads, unit.rows * queries, unit.past), keys),
        ]
    mx.eval([side for pair in own for side in pair])
    return own * (len(model.layers) - (0 if unit.scored else 1))


def head(reader: Reader, scored: int) -> list[Any]:
    """The products with the whole head and with the letter rows, at the sizes in which they are made."""
    trunk, rows = reader.manner.head.trunk, reader.manner.head.rows
    if trunk is None:
        raise ValueError("the model's head is not read by rows")
    last = _filled(_HEAD_ROWS, trunk.layer.weight.shape[1])
    return [last @ side.T for _ in range(0, scored, _HEAD_ROWS) for side in (trunk.layer.weight, rows)]


def _filled(*shape: int) -> Any:
    """Small numbers that make no denormals and no infinities on the way."""
    filled = mx.random.uniform(0.01, 0.02, shape)
    mx.eval(filled)
    return filled

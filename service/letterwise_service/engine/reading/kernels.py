"""Attention, the gated activation and linear layers for processors.

mlx's own attention and activation spend most of their time in exp, one number at a time; and a forward that runs alone
leaves one of the two streams idle, so its parts are spread over both (`lanes.py`).

Engine thread. `install` puts them in mlx's and mlx-lm's places once, on the processor alone; Metal and CUDA keep the
stock operations. Both compute in plain mlx operations, so they need no compiler of ours, and their results differ from
the stock ones by the order of float32 roundings. Calls they do not cover go to the stock operation.

exp(-a) for a ≥ 0 is 1 / (1 + u), u = exp(a) - 1, by a Taylor polynomial at a/16 and four times u ← u(u + 2), since
(1 + u)² - 1 = u(u + 2). Nothing cancels, and an infinite a gives exactly 0. Absolute error below 2e-7.

Scores lie with the keys along the rows, (…, keys, queries): maxima and sums over the keys then run along memory, which
mlx does several times faster than across it. What is compiled is compiled per shape and split by hand (`PerShape`):
without shapes mlx puts a broadcast before every operand, and its limit on the depth of a fused kernel makes eight
passes over memory of what are two here.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..backend import activations, mx, nn
from . import lanes

_SCALE = 1 / 16
_THIRD, _FOURTH, _FIFTH, _SIXTH = (1 / math.factorial(i) for i in (3, 4, 5, 6))
# Shapes that a compiled function is kept for; past them it is made anew, since mlx never forgets one.
MOST_SHAPES = 512

_stock_attention = mx.fast.scaled_dot_product_attention
_stock_swiglu = activations.swiglu
_stock_linear = nn.Linear.__call__
_stock_as_linear = nn.Embedding.as_linear
# A head's product is worth both lanes by itself, and its halves meet at whole tiles of the BLAS.
_HEAD_COLUMNS, _TILE_COLUMNS = 4096, 16
_installed = False
# Joined keys → (prefix keys and values, own keys and values), for the forward that is being built.
_shared: dict[int, tuple[Any, Any, Any, Any, Any]] = {}


def install() -> None:
    """Use these operations from now on, in every model of mlx-lm that is loaded. For a processor only."""
    _use(attention, swiglu)


def uninstall() -> None:
    """Back to the stock operations."""
    _use(_stock_attention, _stock_swiglu)


@contextlib.contextmanager
def stock() -> Iterator[None]:
    """The stock operations inside the block: the judge of these."""
    before = _installed
    uninstall()
    try:
        yield
    finally:
        if before:
            install()


def _use(chosen_attention: Any, chosen_swiglu: Any) -> None:
    global _installed  # noqa: PLW0603 - the places that are changed are the process's own, and so is this
    mx.fast.scaled_dot_product_attention = chosen_attention
    ours = chosen_attention is attention
    nn.Linear.__call__ = linear if ours else _stock_linear
    nn.Embedding.as_linear = as_linear if ours else _stock_as_linear
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models.") and getattr(module, "swiglu", None) in (swiglu, _stock_swiglu):
            vars(module)["swiglu"] = chosen_swiglu
    _installed = ours


def linear(self: Any, x: Any) -> Any:
    """nn.Linear's call: x Wᵀ + b, on a lane of its own beside others that read the same x; a head on both."""
    weight, bias = self.weight, self.get("bias")
    if not lanes.active() or weight.dtype != mx.float32:
        return _stock_linear(self, x)
    if weight.shape[0] >= _HEAD_COLUMNS:
        return _by_columns(x, weight, bias)
    return lanes.product(x, weight.shape[0], partial(_stock_linear, self, x))


def as_linear(self: Any, x: Any) -> Any:
    """nn.Embedding's use as a head, on both lanes."""
    if not lanes.active() or self.weight.dtype != mx.float32:
        return _stock_as_linear(self, x)
    return _by_columns(x, self.weight, None)


def _by_columns(x: Any, weight: Any, bias: Any) -> Any:
    """x Wᵀ + b by the two halves of the output columns."""

    def part(start: int, end: int) -> Any:
        columns = weight[start:end].T
        return x @ columns if bias is None else mx.addmm(bias[start:end], x, columns)

    return lanes.halves(weight.shape[0], part, axis=-1, step=_TILE_COLUMNS)


def join_shared(prefix: tuple[Any, Any], own: tuple[Any, Any]) -> tuple[Any, Any]:
    """Prefix (1, H, P, D) and own (B, H, L, D) keys and values, joined along the tokens: (B, H, P + L, D) each.

    The joined arrays are lazy: where attention finds their parts by `_shared`, they are never computed.
    """
    rows = own[0].shape[0]
    keys, values = (
        mx.concatenate([mx.broadcast_to(p, (rows, *p.shape[1:])), o], axis=2) for p, o in zip(prefix, own, strict=True)
    )
    if _installed:
        _shared[id(keys)] = (keys, *prefix, *own)
    return keys, values


def forget_shared() -> None:
    """The forward is built: let go of its keys and values."""
    _shared.clear()


def attention(q: Any, k: Any, v: Any, *, scale: float, mask: Any = None, sinks: Any = None, stream: Any = None) -> Any:
    """softmax(q kᵀ · scale + mask) v in float32, as mx.fast.scaled_dot_product_attention gives it.

    q (B, H·G, L, D), k (B, H, P + L, D), v (B, H, P + L, E). Covered: the causal mask, over more than one position.
    """
    length, rows = q.shape[2], q.shape[0]
    covered = mask == "causal" if isinstance(mask, str) else False
    if not covered or sinks is not None or length == 1 or q.dtype != mx.float32 or k.dtype != mx.float32:
        return _stock_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, stream=stream)
    shared = _shared.get(id(k))
    if shared is not None:
        _, prefix_k, prefix_v, own_k, own_v = shared
    elif rows == 1:
        past = k.shape[2] - length
        prefix_k, prefix_v, own_k, own_v = k[:, :, :past], v[:, :, :past], k[:, :, past:], v[:, :, past:]
    else:
        return _stock_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, stream=stream)
    return _spread_attention(q * scale, (prefix_k, prefix_v), (own_k, own_v))


def _spread_attention(q: Any, prefix: tuple[Any, Any], own: tuple[Any, Any]) -> Any:
    """`_two_part`, spread over the lanes by rows, or by key/value heads where these fall into more equal halves."""
    rows, heads = q.shape[0], prefix[0].shape[1]
    group = q.shape[1] // heads

    def some_rows(start: int, end: int) -> Any:
        return _two_part(q[start:end], *prefix, *(part[start:end] for part in own))

    def some_heads(start: int, end: int) -> Any:
        return _two_part(q[:, start * group : end * group], *(part[:, start:end] for part in (*prefix, *own)))

    if not lanes.active():
        return _two_part(q, *prefix, *own)
    if _larger_half(rows) <= _larger_half(heads):
        return lanes.halves(rows, some_rows, axis=0)
    return lanes.halves(heads, some_heads, axis=1)


def _larger_half(size: int) -> float:
    return (size + 1) // 2 / size


def _two_part(q: Any, prefix_k: Any, prefix_v: Any, own_k: Any, own_v: Any) -> Any:
    """Attention over a prefix that all rows share and over each row's own tokens, with one softmax over both.

    The queries of a key/value head's group are the rows of one product with the prefix, (G·L, D) · (D, P); the rows of
    the batch are not folded into it, so that no product's shape, and with it no bit, depends on how many there are.
    """
    rows, heads, length, _ = q.shape
    kv_heads = own_k.shape[1]
    group = heads // kv_heads
    queries = q.reshape(rows, kv_heads, group * length, -1).swapaxes(-1, -2)  # (B, H, D, G·L)
    own = mx.where(_causal(length, group), own_k @ queries, -math.inf)  # (B, H, L, G·L)
    top = own.max(axis=-2, keepdims=True)  # (B, H, 1, G·L)
    if prefix_k.shape[2] == 0:
        own = _exp_negative(top - own)
        out = (own.swapaxes(-1, -2) @ own_v) / own.sum(axis=-2, keepdims=True).swapaxes(-1, -2)
        return out.reshape(rows, heads, length, -1)
    past = prefix_k @ queries  # (B, H, P, G·L), the prefix shared by the rows, not copied
    top = mx.maximum(top, past.max(axis=-2, keepdims=True))
    own, past = _exp_negative(top - own), _exp_negative(top - past)
    total = own.sum(axis=-2, keepdims=True) + past.sum(axis=-2, keepdims=True)
    out = (own.swapaxes(-1, -2) @ own_v + past.swapaxes(-1, -2) @ prefix_v) / total.swapaxes(-1, -2)
    return out.reshape(rows, heads, length, -1)


def _causal(length: int, group: int) -> Any:
    """(L, G·L): query l of any head of the group sees keys 0 … l."""
    position = mx.arange(length)
    return mx.tile(position[:, None] <= position[None], (1, group))


class PerShape:
    """`mx.compile` of one function, for at most so many shapes at a time."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._compiled: Any = None
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, *arrays: Any) -> Any:
        shape = arrays[0].shape
        if shape not in self.shapes:
            if self._compiled is None or len(self.shapes) >= MOST_SHAPES:
                self.shapes.clear()
                self._compiled = None  # which forgets its shapes
                self._compiled = mx.compile(self._function)
            self.shapes.add(shape)
        return self._compiled(*arrays)


def _grown_a_little(a: Any) -> Any:
    """exp(a/8) - 1 for a ≥ 0: a Taylor polynomial of the sixth degree at a/16, and one squaring."""
    y = a * _SCALE
    square = y * y
    u = y * ((1.0 + 0.5 * y) + square * ((_THIRD + _FOURTH * y) + square * (_FIFTH + _SIXTH * y)))
    return u * (u + 2.0)


def _eighth_power(u: Any) -> Any:
    """(1 + u)⁸ - 1."""
    for _ in range(3):
        u = u * (u + 2.0)
    return u


_little = PerShape(_grown_a_little)
_shrunk = PerShape(lambda u: 1.0 / (_eighth_power(u) + 1.0))


def _exp_negative(a: Any) -> Any:
    """exp(-a) for a ≥ 0."""
    return _shrunk(_little(a))


def swiglu(gate: Any, x: Any) -> Any:
    """silu(gate) · x, as mlx-lm's; silu(g) = max(g, 0) - |g| / (exp |g| + 1)."""
    if gate.dtype != mx.float32:
        return _stock_swiglu(gate, x)
    return _swiglu(gate, x)


def _swiglu(gate: Any, x: Any) -> Any:
    size = mx.abs(gate)
    return _gated(gate, size, _little(size), x)


_gated = PerShape(lambda gate, size, u, x: (0.5 * (gate + size) - size / (_eighth_power(u) + 2.0)) * x)

"""Attention, the gated activation and linear layers for processors.

mlx's own attention and activation spend most of their time in exp, one number at a time; and a forward that runs alone
leaves one of the two streams idle, so its products are spread over both (`spread`), by output columns and by heads.

Engine thread. `install` puts them in mlx's and mlx-lm's places once, on the processor alone; Metal and CUDA keep the
stock operations. Both compute in plain mlx operations, so they need no compiler of ours, and their results differ from
the stock ones by the order of float32 roundings. Calls they do not cover go to the stock operation.

exp(-a) for a ≥ 0 is 1 / (1 + u), u = exp(a) - 1, by a Taylor polynomial at a/32 and five times u ← u(u + 2), since
(1 + u)² - 1 = u(u + 2). Nothing cancels, and an infinite a gives exactly 0. Absolute error below 2e-7.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .backend import activations, mx, nn

_HALVINGS = 5
_COEFFICIENTS = [1 / math.factorial(i) for i in range(5, 0, -1)]

_stock_attention = mx.fast.scaled_dot_product_attention
_stock_swiglu = activations.swiglu
_stock_linear = nn.Linear.__call__
_stock_as_linear = nn.Embedding.as_linear
# Products of fewer output columns than this are not worth two streams.
_SPREAD_COLUMNS = 512
# The streams that the forward being built is spread over; empty for a forward that has one of its own.
_lanes: tuple[Any, ...] = ()
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


@contextlib.contextmanager
def spread(lanes: Sequence[Any]) -> Iterator[None]:
    """Build what is built inside the block over all `lanes`; the bits are those of one (`probe.py` makes sure)."""
    global _lanes  # noqa: PLW0603 - the engine thread builds one forward at a time
    _lanes = tuple(lanes) if _installed and len(lanes) == 2 else ()
    try:
        yield
    finally:
        _lanes = ()


def linear(self: Any, x: Any) -> Any:
    """nn.Linear's call: x Wᵀ + b, spread over the lanes by output columns."""
    if not _spreads(self.weight):
        return _stock_linear(self, x)
    return _by_columns(x, self.weight, self.get("bias"))


def as_linear(self: Any, x: Any) -> Any:
    """nn.Embedding's use as a head, spread in the same way."""
    return _by_columns(x, self.weight, None) if _spreads(self.weight) else _stock_as_linear(self, x)


def _spreads(weight: Any) -> bool:
    return bool(_lanes) and weight.shape[0] >= _SPREAD_COLUMNS and weight.dtype == mx.float32


def _by_columns(x: Any, weight: Any, bias: Any) -> Any:
    """The two halves of the output columns, one on each lane."""
    middle = weight.shape[0] // 2 // 16 * 16  # whole tiles of the BLAS, so that no column falls into another kernel
    halves = []
    for lane, part in zip(_lanes, (slice(None, middle), slice(middle, None)), strict=True):
        with mx.stream(lane):
            columns = weight[part].T
            halves.append(x @ columns if bias is None else mx.addmm(bias[part], x, columns))
    return mx.concatenate(halves, axis=-1)


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
    return _by_heads(q * scale, prefix_k, prefix_v, own_k, own_v)


def _by_heads(q: Any, *parts: Any) -> Any:
    """`_two_part`, spread over the lanes by key/value heads."""
    heads = parts[0].shape[1]
    if not _lanes or heads < 2:
        return _two_part(q, *parts)
    middle, group = (heads + 1) // 2, q.shape[1] // heads
    found = []
    for lane, (start, end) in zip(_lanes, ((0, middle), (middle, heads)), strict=True):
        with mx.stream(lane):
            found.append(_two_part(q[:, start * group : end * group], *(part[:, start:end] for part in parts)))
    return mx.concatenate(found, axis=1)


def _two_part(q: Any, prefix_k: Any, prefix_v: Any, own_k: Any, own_v: Any) -> Any:
    """Attention over a prefix that all rows share and over each row's own tokens, with one softmax over both.

    The queries of a key/value head's group are the rows of one product with the prefix, (G·L, D) · (D, P); the rows of
    the batch are not folded into it, so that no product's shape, and with it no bit, depends on how many there are.
    """
    rows, heads, length, _ = q.shape
    kv_heads = own_k.shape[1]
    group = heads // kv_heads
    grouped = q.reshape(rows, kv_heads, group * length, -1)  # (B, H, G·L, D)
    own = mx.where(_causal(length, group), grouped @ own_k.swapaxes(-1, -2), -math.inf)  # (B, H, G·L, L)
    top = own.max(axis=-1, keepdims=True)  # (B, H, G·L, 1)
    if prefix_k.shape[2] == 0:
        own = _exp_below(own, top)
        out = (own @ own_v) / own.sum(axis=-1, keepdims=True)
        return out.reshape(rows, heads, length, -1)
    past = grouped @ prefix_k.swapaxes(-1, -2)  # (B, H, G·L, P), the prefix shared by the rows, not copied
    top = mx.maximum(top, past.max(axis=-1, keepdims=True))
    own, past = _exp_below(own, top), _exp_below(past, top)
    total = own.sum(axis=-1, keepdims=True) + past.sum(axis=-1, keepdims=True)
    out = (own @ own_v + past @ prefix_v) / total
    return out.reshape(rows, heads, length, -1)


def _causal(length: int, group: int) -> Any:
    """(G·L, L): query l of any head of the group sees keys 0 … l."""
    position = mx.arange(length)
    return mx.tile(position[:, None] >= position[None], (group, 1))


def _grown(a: Any) -> Any:
    """exp(a) - 1 for a ≥ 0, by polynomial and squaring."""
    y = a * (1.0 / (1 << _HALVINGS))
    polynomial: Any = _COEFFICIENTS[0]
    for coefficient in _COEFFICIENTS[1:]:
        polynomial = y * polynomial + coefficient
    u = polynomial * y
    for _ in range(_HALVINGS):
        u = u * (u + 2.0)
    return u


def _below(x: Any, top: Any) -> Any:
    return 1.0 / (_grown(top - x) + 1.0)


_exp_below_fast = mx.compile(_below, shapeless=True)


def _exp_below(x: Any, top: Any) -> Any:
    """exp(x - top) where top ≥ x."""
    return _exp_below_fast(x, top)


def swiglu(gate: Any, x: Any) -> Any:
    """silu(gate) · x, as mlx-lm's; silu(g) = max(g, 0) - |g| / (exp |g| + 1)."""
    if gate.dtype != mx.float32:
        return _stock_swiglu(gate, x)
    if not _lanes or gate.ndim != 3 or gate.shape[1] < 2:
        return _swiglu_fast(gate, x)
    middle = gate.shape[1] // 2
    found = []
    for lane, part in zip(_lanes, (slice(None, middle), slice(middle, None)), strict=True):
        with mx.stream(lane):
            found.append(_swiglu_fast(gate[:, part], x[:, part]))
    return mx.concatenate(found, axis=1)


def _swiglu(gate: Any, x: Any) -> Any:
    size = mx.abs(gate)
    return (0.5 * (gate + size) - size / (_grown(size) + 2.0)) * x


_swiglu_fast = mx.compile(_swiglu, shapeless=True)

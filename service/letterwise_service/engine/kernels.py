"""Attention and the gated activation for processors: mlx's own spend most of their time in exp, one number at a time.

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
from collections.abc import Iterator
from typing import Any

from .backend import activations, mx

_HALVINGS = 5
_COEFFICIENTS = [1 / math.factorial(i) for i in range(5, 0, -1)]

_stock_attention = mx.fast.scaled_dot_product_attention
_stock_swiglu = activations.swiglu
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
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models.") and getattr(module, "swiglu", None) in (swiglu, _stock_swiglu):
            vars(module)["swiglu"] = chosen_swiglu
    _installed = chosen_attention is attention


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
    return _two_part(q * scale, prefix_k, prefix_v, own_k, own_v)


def _two_part(q: Any, prefix_k: Any, prefix_v: Any, own_k: Any, own_v: Any) -> Any:
    """Attention over a prefix that all rows share and over each row's own tokens, with one softmax over both.

    Every query of a key/value head, of all rows, is one row of one product with the prefix: (H, B·G·L, D) · (H, D, P).
    """
    rows, heads, length, _ = q.shape
    kv_heads = own_k.shape[1]
    group = heads // kv_heads
    grouped = q.reshape(rows, kv_heads, group * length, -1)  # (B, H, G·L, D)
    own = grouped @ own_k.swapaxes(-1, -2)  # (B, H, G·L, L)
    own = mx.where(_causal(length, group), own, -math.inf)
    top = own.max(axis=-1, keepdims=True)  # (B, H, G·L, 1)
    if prefix_k.shape[2] == 0:
        weights = _exp_below(own, top)
        out = (weights @ own_v) / weights.sum(axis=-1, keepdims=True)
        return out.reshape(rows, heads, length, -1)
    folded = _fold(grouped)  # (H, B·G·L, D)
    past = folded @ prefix_k[0].swapaxes(-1, -2)  # (H, B·G·L, P)
    top = mx.maximum(top, _unfold(past.max(axis=-1, keepdims=True), rows))
    own = _exp_below(own, top)
    past = _exp_below(past, _fold(top))
    total = own.sum(axis=-1, keepdims=True) + _unfold(past.sum(axis=-1, keepdims=True), rows)
    out = (own @ own_v + _unfold(past @ prefix_v[0], rows)) / total
    return out.reshape(rows, heads, length, -1)


def _fold(x: Any) -> Any:
    """(B, H, M, X) → (H, B·M, X)"""
    rows, heads, queries, size = x.shape
    return x.swapaxes(0, 1).reshape(heads, rows * queries, size)


def _unfold(x: Any, rows: int) -> Any:
    """(H, B·M, X) → (B, H, M, X)"""
    heads, queries, size = x.shape
    return x.reshape(heads, rows, queries // rows, size).swapaxes(0, 1)


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
    return _swiglu_fast(gate, x) if gate.dtype == mx.float32 else _stock_swiglu(gate, x)


def _swiglu(gate: Any, x: Any) -> Any:
    size = mx.abs(gate)
    return (0.5 * (gate + size) - size / (_grown(size) + 2.0)) * x


_swiglu_fast = mx.compile(_swiglu, shapeless=True)

"""Where the milliseconds of a tails forward go: each part alone, at the forward's own shapes, on one stream.

Parts are what the model calls, as the engine has them in place when the worker has warmed, so a change of the engine
shows here by itself. Each is repeated for every layer in one evaluation; the best of a few runs counts.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from letterwise_service.engine.backend import mx
from letterwise_service.engine.reading.kernels import forget_shared
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.reading.views import Cache

from . import products

_RUNS = 5


def measure(reader: Reader, cache: Cache, rows: int, width: int) -> dict[str, float]:
    """Milliseconds by part; `whole` is the forward itself, `other` what the parts leave of it."""
    assert reader.manner.share is not None
    past = int(cache[0].offset)
    unit = products.Unit(rows, width, past, rows)
    found = {
        "whole": _best(lambda: _whole(reader, cache, unit)),
        "linear layers": _best(lambda: products.chain(products.linear(reader.model, unit))),
        "attention products": _best(lambda: products.chain(products.attention(reader.model, unit))),
    }
    attention = _best(lambda: _attention(reader, cache, unit))
    found["softmax and the rest of attention"] = max(0.0, attention - found["attention products"])
    found["gated activation"] = _best(lambda: _activation(reader, unit))
    found["norms, rope, sums"] = _best(lambda: _norms(reader, unit))
    found["head and letter rows"] = _best(lambda: products.head(reader, rows))
    found["building the graph in Python"] = _build_time(reader, cache, unit)
    found["other"] = found["whole"] - sum(value for name, value in found.items() if name != "whole")
    return found


def _best(make: Callable[[], Any]) -> float:
    """Milliseconds of an evaluation, the best of a few, the graph built before the clock starts."""
    best = float("inf")
    for _ in range(_RUNS):
        built = make()
        forget_shared()
        started = time.perf_counter()
        mx.eval(built)
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def _whole(reader: Reader, cache: Cache, unit: products.Unit) -> Any:
    assert reader.manner.share is not None
    ids = mx.full((unit.rows, unit.width), 1000)
    out = reader.manner.head.forward(reader.model, ids, reader.manner.share(cache, unit.rows))
    return reader.manner.head.scores(out[:, -1])


def _build_time(reader: Reader, cache: Cache, unit: products.Unit) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        started = time.perf_counter()
        _whole(reader, cache, unit)
        best = min(best, time.perf_counter() - started)
        forget_shared()
    return best * 1e3


def _attention(reader: Reader, cache: Cache, unit: products.Unit) -> Any:
    """Attention of every layer over its view, one after the other."""
    assert reader.manner.share is not None
    one = reader.model.layers[0].self_attn
    size = one.q_proj.weight.shape[0] // one.n_heads
    out = mx.random.normal((unit.rows, one.n_heads, unit.width, size))
    own = mx.random.normal((unit.rows, one.n_kv_heads, unit.width, size))
    mx.eval(out, own)
    for view in reader.manner.share(cache, unit.rows):
        keys, values = view.update_and_fetch(own, own)
        out = mx.fast.scaled_dot_product_attention(out, keys, values, scale=one.scale, mask="causal")
    return out


def _activation(reader: Reader, unit: products.Unit) -> Any:
    """The feed-forward layers' activation, as the model's own module calls it."""
    module = importlib.import_module(type(reader.model).__module__)
    wide = reader.model.layers[0].mlp.gate_proj.weight.shape[0]
    gate, out = mx.random.normal((2, unit.rows, unit.width, wide))
    mx.eval(gate, out)
    for _ in reader.model.layers:
        out = module.swiglu(gate, out)
    return out


def _norms(reader: Reader, unit: products.Unit) -> Any:
    """Two norms, the rotation of queries and keys, and two residual sums of every layer."""
    layers = reader.model.layers
    one, wide = layers[0].self_attn, layers[0].mlp.gate_proj.weight.shape[1]
    size = one.q_proj.weight.shape[0] // one.n_heads
    hidden = mx.random.normal((unit.rows, unit.width, wide))
    queries = mx.random.normal((unit.rows, one.n_heads, unit.width, size))
    keys = mx.random.normal((unit.rows, one.n_kv_heads, unit.width, size))
    mx.eval(hidden, queries, keys)
    for layer in layers:
        hidden = hidden + layer.input_layernorm(hidden)
        hidden = hidden + layer.post_attention_layernorm(hidden)
        queries, keys = layer.self_attn.rope(queries, offset=unit.past), layer.self_attn.rope(keys, offset=unit.past)
    return [hidden, queries, keys]

"""The processor's own operations against mlx's stock ones and against numpy in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from letterwise_service.engine.backend import activations, mx
from letterwise_service.engine.reading import kernels

SHAPES = [
    # rows, key/value heads, queries per head, prefix, length, size
    (1, 3, 3, 745, 66, 64),
    (4, 3, 3, 745, 32, 64),
    (2, 1, 8, 1, 64, 16),
    (3, 2, 1, 127, 40, 32),
    (1, 4, 2, 0, 128, 64),
    (2, 2, 4, 300, 2, 8),
]


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    kernels.install()
    yield
    kernels.forget_shared()
    kernels.uninstall()


def drawn(seed: int, *shape: int, scale: float = 1.0) -> Any:
    return mx.array(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * scale)


def parts(shape: tuple[int, ...], scale: float = 1.0) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """Queries (B, H·G, L, D), the prefix's keys and values (1, H, P, D), the rows' own (B, H, L, D)."""
    rows, heads, group, past, length, size = shape
    prefix = drawn(1, 1, heads, past, size, scale=scale), drawn(2, 1, heads, past, size)
    own = drawn(3, rows, heads, length, size, scale=scale), drawn(4, rows, heads, length, size)
    return drawn(5, rows, heads * group, length, size, scale=scale), prefix, own


def judged(q: Any, k: Any, v: Any) -> np.ndarray:
    """Causal attention in numpy, float64, the plain way."""
    queries, keys, values = (np.array(x, dtype=np.float64) for x in (q, k, v))
    group = queries.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    length, past = queries.shape[2], keys.shape[2] - queries.shape[2]
    scores = queries @ np.swapaxes(keys, -1, -2) / np.sqrt(queries.shape[-1])
    seen = np.arange(keys.shape[2])[None] <= np.arange(length)[:, None] + past
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ values / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_over_shared_prefix_equals_float64(shape: tuple[int, ...]) -> None:
    """Prefix and own tokens under one softmax, for every grouping of heads and rows."""
    q, prefix, own = parts(shape)
    k, v = kernels.join_shared(prefix, own)
    found = mx.fast.scaled_dot_product_attention(q, k, v, scale=shape[-1] ** -0.5, mask="causal")
    np.testing.assert_allclose(np.array(found), judged(q, k, v), atol=2e-6)


@pytest.mark.parametrize("past", [0, 1, 128, 500])
def test_attention_of_prefix_chunk_equals_float64(past: int) -> None:
    """One row without a view: the chunk's own tokens are the last of the keys."""
    q, prefix, own = parts((1, 3, 3, past, 128, 64))
    k, v = (mx.concatenate(pair, axis=2) for pair in zip(prefix, own, strict=True))
    found = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask="causal")
    np.testing.assert_allclose(np.array(found), judged(q, k, v), atol=2e-6)


def test_attention_of_extreme_scores_stays_exact() -> None:
    """Scores in the thousands: one key wins, the rest weigh exactly nothing, and nothing overflows."""
    q, prefix, own = parts((2, 2, 2, 50, 40, 32), scale=40.0)
    k, v = kernels.join_shared(prefix, own)
    found = mx.fast.scaled_dot_product_attention(q, k, v, scale=32**-0.5, mask="causal")
    # Scores of such size differ by 1e-4 from float64's by their own rounding, and the weights with them.
    np.testing.assert_allclose(np.array(found), judged(q, k, v), atol=2e-2)
    assert np.isfinite(np.array(found)).all()


def test_attention_never_computes_joined_keys() -> None:
    """The joined keys stay lazy: the answer is right even where computing them would fail the whole graph."""
    q, prefix, own = parts((2, 2, 2, 60, 40, 32))
    k, _ = kernels.join_shared(prefix, own)
    before = mx.get_active_memory()
    mx.eval(kernels.attention(q, k, k, scale=0.1, mask="causal"))
    assert mx.get_active_memory() - before < k.nbytes // 2


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_attention_bits_do_not_depend_on_other_rows(rows: int) -> None:
    """A row beside others has the bits that it has alone, at sizes of a real model."""
    q, prefix, own = parts((rows, 3, 3, 700, 32, 64))
    k, v = kernels.join_shared(prefix, own)
    together = np.array(kernels.attention(q, k, v, scale=0.125, mask="causal"))
    for i in range(rows):
        k, v = kernels.join_shared(prefix, (own[0][i : i + 1], own[1][i : i + 1]))
        alone = np.array(kernels.attention(q[i : i + 1], k, v, scale=0.125, mask="causal"))
        assert alone.tobytes() == together[i : i + 1].tobytes()


@pytest.mark.parametrize("case", ["mask", "no mask", "half", "one token", "unknown rows", "sinks"])
def test_attention_leaves_other_calls_to_stock(case: str) -> None:
    """What is not covered gives the stock operation's bits."""
    q, k, v = (drawn(seed, 2, 4, 16, 32) for seed in (1, 2, 3))
    options: dict[str, Any] = {"scale": 0.2, "mask": "causal"}
    if case == "mask":
        options["mask"] = mx.tril(mx.ones((16, 16), dtype=mx.bool_))
    elif case == "no mask":
        options["mask"] = None
    elif case == "half":
        q, k, v = (x.astype(mx.float16) for x in (q, k, v))
    elif case == "one token":
        q = q[:, :, -1:]
    elif case == "sinks":
        options["sinks"] = mx.zeros((4,))
    found = mx.fast.scaled_dot_product_attention(q, k, v, **options)
    with kernels.stock():
        expected = mx.fast.scaled_dot_product_attention(q, k, v, **options)
    assert mx.array_equal(found, expected).item()


def test_swiglu_equals_float64() -> None:
    """Small, large and extreme gates, positive and negative."""
    gate = np.concatenate([np.linspace(-30, 30, 4001), [0.0, -0.0, 1e-30, -200.0, 200.0, 1e4, -1e4]]).astype(np.float32)
    exact = gate.astype(np.float64) / (1 + np.exp(-np.clip(gate.astype(np.float64), -700, None)))
    found = np.array(kernels.swiglu(mx.array(gate), mx.ones(gate.shape)))
    np.testing.assert_allclose(found, exact, rtol=3e-6, atol=3e-7)


def test_compiled_function_keeps_a_bounded_number_of_shapes() -> None:
    """Every length of a state is a new shape: past the bound the function is compiled anew, and stays right."""
    half = kernels.PerShape(lambda a: a * 0.5)
    for size in range(1, kernels.MOST_SHAPES + 10):
        found = half(mx.ones(size))
        assert found.shape == (size,)
    assert found.tolist() == [0.5] * size
    assert len(half.shapes) == 9


def test_swiglu_of_sixteen_bits_is_stock() -> None:
    """Only float32 is computed our way."""
    gate, x = (drawn(seed, 4, 64).astype(mx.bfloat16) for seed in (1, 2))
    assert mx.array_equal(kernels.swiglu(gate, x), activations.swiglu(gate, x)).item()


def test_stock_block_restores_both_ways() -> None:
    """Inside the block mlx's own operations stand, and after it ours again."""
    from mlx_lm.models import llama

    assert mx.fast.scaled_dot_product_attention is kernels.attention
    assert vars(llama)["swiglu"] is kernels.swiglu
    with kernels.stock():
        assert mx.fast.scaled_dot_product_attention is not kernels.attention
        assert vars(llama)["swiglu"] is activations.swiglu
    assert mx.fast.scaled_dot_product_attention is kernels.attention
    assert vars(llama)["swiglu"] is kernels.swiglu


_BITS = """
import hashlib, numpy as np
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.backend import mx
kernels.install()
r = np.random.default_rng(0)
q, k, v = (mx.array(r.standard_normal((1, 6, 90, 32), dtype=np.float32)) for _ in range(3))
a = kernels.attention(q[:, :, :40], k, v, scale=0.2, mask="causal")
print(hashlib.sha256(np.array(a).tobytes() + np.array(kernels.swiglu(q, k)).tobytes()).hexdigest())
"""


def test_bits_are_the_same_without_a_compiler() -> None:
    """A machine without g++ computes the same numbers, only slower."""
    found = [
        subprocess.run(
            [sys.executable, "-c", _BITS], env={**os.environ, **extra}, capture_output=True, text=True, check=True
        ).stdout
        for extra in ({}, {"MLX_DISABLE_COMPILE": "1"})
    ]
    assert found[0] == found[1] != ""

"""Cache views and copies: what they give, and that they leave the prefix's arrays as they were."""

from __future__ import annotations

from typing import Any

import pytest

from letterwise_service.engine.backend import caches, mx
from letterwise_service.engine.reading import views
from tests.engine.conftest import random_ids
from tests.tiny import tiny_model

ARCHITECTURES = ["llama", "gemma3_text", "qwen3_5"]


def prefilled(architecture: str, tokens: int = 60) -> tuple[Any, Any]:
    """A model, and the sealed cache of a prefix longer than gemma's window of 40."""
    model = tiny_model(architecture)
    cache = caches.make_prompt_cache(model)
    mx.eval(model(mx.array([random_ids(tokens)]), cache=cache))
    return model, views.seal(cache)


def snapshot(cache: Any) -> list[Any]:
    taken = [mx.array(a) for a in views.arrays(cache)]
    mx.eval(taken)
    return taken


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(mx.array_equal(a, b).item() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("make", [views.view, lambda cache, rows: views.copy(cache), views.merged])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prefix_keeps_its_bits_whatever_is_run_over_it(architecture: str, make: Any) -> None:
    """Several forwards over one view, copy or merge, past the window, write nothing into the prefix."""
    model, cache = prefilled(architecture)
    before, offsets = snapshot(cache), [getattr(layer, "offset", None) for layer in cache]
    rows = 1 if make not in (views.view, views.merged) else 3
    own = make(cache, rows)
    for seed in range(3):
        mx.eval(model(mx.array([random_ids(30, seed=seed + i) for i in range(rows)]), cache=own))
    assert same(before, snapshot(cache))
    assert offsets == [getattr(layer, "offset", None) for layer in cache]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_view_of_rows_gives_each_row_what_a_copy_gives(architecture: str) -> None:
    """Each row of a forward over a view has the logits of that row alone on a copy."""
    model, cache = prefilled(architecture)
    rows = [random_ids(30, seed=i) for i in range(3)]
    together = model(mx.array(rows), cache=views.view(cache, 3))
    for i, row in enumerate(rows):
        alone = model(mx.array([row]), cache=views.copy(cache))[0]
        assert mx.abs(together[i] - alone).max().item() <= 2e-5 * mx.abs(alone).max().item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_copies_of_one_prefix_are_independent(architecture: str) -> None:
    """What one copy is given does not reach another, nor a copy of it."""
    model, cache = prefilled(architecture)
    first, second = views.copy(cache), views.copy(cache)
    mx.eval(model(mx.array([random_ids(9)]), cache=first))
    third = views.copy(first)
    mx.eval(model(mx.array([random_ids(7)]), cache=third))
    later = model(mx.array([random_ids(5)]), cache=second)
    assert mx.array_equal(later, model(mx.array([random_ids(5)]), cache=views.copy(cache))).item()
    mx.eval(later)
    continued = model(mx.array([random_ids(5)]), cache=first)
    fresh = views.copy(cache)
    mx.eval(model(mx.array([random_ids(9)]), cache=fresh))
    assert mx.array_equal(continued, model(mx.array([random_ids(5)]), cache=fresh)).item()


def test_seal_cuts_attention_buffers_to_their_length() -> None:
    """mlx-lm grows buffers by 256 tokens; a sealed cache holds and counts what is there."""
    model = tiny_model("llama")
    cache = caches.make_prompt_cache(model)
    mx.eval(model(mx.array([random_ids(60)]), cache=cache))
    grown = [layer.keys_and_values() for layer in cache]
    assert cache[0].keys.shape[2] == 256
    views.seal(cache)
    assert views.nbytes(cache) == 4 * 2 * 60 * 2 * 16 * 4  # layers, keys and values, tokens, heads, size, bytes
    for layer, (keys, values) in zip(cache, grown, strict=True):
        assert mx.array_equal(layer.keys, keys).item()
        assert mx.array_equal(layer.values, values).item()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arrays_are_all_that_the_cache_holds(architecture: str) -> None:
    """Every layer's arrays are found, however its state is put together."""
    _, cache = prefilled(architecture)
    assert len(views.arrays(cache)) >= 2 * len(cache)
    assert views.nbytes(cache) == sum(a.size * a.dtype.size for a in views.arrays(cache))


def test_recurrent_layers_are_there_to_be_tried() -> None:
    """The three models cover plain attention, a rotating window and recurrent layers."""
    kinds = {type(layer).__name__ for name in ARCHITECTURES for layer in prefilled(name)[1]}
    assert {"KVCache", "RotatingKVCache", "ArraysCache"} <= kinds

"""Caches for the rows of a tails forward: views over one shared prefix, and bitwise copies of it.

Engine thread. The cache classes of mlx-lm do the work: a view is a cache of the prefix's own class whose attributes
are the prefix's, arrays broadcast to the rows, so windows, masks and recurrent updates are that class's. Writes land
in the view and are dropped with it. Which models a view serves is found by trying (`probe.py`), not by a list of names.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..backend import caches, mx
from .kernels import join_shared

Cache = list[Any]


class SharedKVCache(caches.KVCache):  # type: ignore[misc]  # no types are published
    """A plain attention layer's view: the prefix's keys and values joined to the rows' own, nothing stored.

    prefix keys (1, H, P, D), own keys (B, H, L, D) → joined (B, H, P + L, D).
    """

    def __init__(self, prefix: Any) -> None:
        super().__init__()
        self._prefix = prefix.keys_and_values()
        self.keys, self.values = self._prefix
        self.offset = prefix.offset

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        self.offset += keys.shape[2]
        self.keys, self.values = join_shared(self._prefix, (keys, values))
        return self.keys, self.values

    def keys_and_values(self) -> tuple[Any, Any]:
        return self.keys, self.values


def view(cache: Cache, rows: int) -> Cache:
    """One cache per layer that gives each of `rows` rows the whole prefix."""
    return [_rebuilt(layer, partial(_spread, rows), shared=True) for layer in cache]


def copy(cache: Cache) -> Cache:
    """Independent caches with the prefix's own bits: arrays are shared, since MLX never changes one in place."""
    return [_rebuilt(layer, partial(_spread, 1)) for layer in cache]


def owned(cache: Cache) -> Cache:
    """A copy whose every array has a buffer of its own and no spare room, so that what it counts is what it holds.

    An array may be a slice of a larger buffer, which lives as long as the slice does.
    """
    own = copy(cache)
    for layer in _plain(own):
        if layer.keys is not None:
            layer.keys, layer.values = layer.keys_and_values()
    return [_rebuilt(layer, _own) for layer in own]


def merged(cache: Cache, rows: int) -> Cache:
    """The rows' caches by mlx-lm's own batching: each row's prefix copied. For classes whose state does not spread."""
    own = [copy(cache) for _ in range(rows)]
    return [type(layer).merge([row[i] for row in own]) for i, layer in enumerate(cache)]


def seal(cache: Cache) -> Cache:
    """`cache` with attention buffers cut to their length: no spare room is kept, counted or copied."""
    for layer in _plain(cache):
        if layer.keys is not None and layer.keys.shape[2] > layer.offset:
            layer.keys, layer.values = (mx.contiguous(x) for x in layer.keys_and_values())
    return cache


def arrays(cache: Cache) -> list[Any]:
    """Every array that the cache holds, to evaluate or to count."""
    return arrays_in([layer.state for layer in cache])


def arrays_in(tree: Any) -> list[Any]:
    """Every array in nested lists, tuples and dicts."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def nbytes(cache: Cache) -> int:
    """Bytes of the arrays that the cache holds."""
    return sum(int(a.nbytes) for a in arrays(cache))


def _plain(cache: Sequence[Any]) -> Iterator[Any]:
    """The plain attention caches in `cache`, those inside a list of caches included."""
    for layer in cache:
        if type(layer) is caches.KVCache:
            yield layer
        elif isinstance(layer, caches.CacheList):
            yield from _plain(layer.caches)


def _rebuilt(layer: Any, change: Callable[[Any], Any], *, shared: bool = False) -> Any:
    """A cache of the same class with the layer's attributes, each array changed; a view where `shared`.

    A new array object for every array: a class that assigns into a slice changes the object it holds.
    """
    if shared and type(layer) is caches.KVCache and layer.keys is not None:
        return SharedKVCache(layer)
    own = copies.copy(layer)
    vars(own).update({name: _changed(value, change, shared=shared) for name, value in vars(layer).items()})
    return own


def _changed(value: Any, change: Callable[[Any], Any], *, shared: bool) -> Any:
    if isinstance(value, mx.array):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(item, change, shared=shared) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(item, change, shared=shared) for item in value)
    return _rebuilt(value, change, shared=shared) if hasattr(value, "state") else value


def _spread(rows: int, array: Any) -> Any:
    """A new array object over the same buffer, with a batch of one spread over `rows`."""
    shape = (rows, *array.shape[1:]) if array.ndim and array.shape[0] == 1 else array.shape
    return mx.broadcast_to(array, shape)


def _own(array: Any) -> Any:
    """The array's bits in a buffer of its own."""
    return mx.where(array, True, False) if array.dtype == mx.bool_ else array * 1


def _collect(state: Any, found: list[Any]) -> None:
    if isinstance(state, mx.array):
        found.append(state)
    elif isinstance(state, dict):
        _collect(list(state.values()), found)
    elif isinstance(state, Sequence) and not isinstance(state, str):
        for item in state:
            _collect(item, found)

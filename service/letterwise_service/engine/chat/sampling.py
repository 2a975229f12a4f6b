"""How a chat's next token is chosen: the likeliest one, or one drawn with a random key of the row's own.

Engine thread. Nothing here reads or moves MLX's global random state, so what else is drawn, or computed, beside a row
changes none of its draws. Knows nothing of rows or batches.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeAlias

from ...method.chat import ChatRequest
from ..backend import mx

Sampler: TypeAlias = Callable[[Any], Any]

# Below this a temperature leaves nothing to chance, and its reciprocal no room for float32.
_COLDEST = 1e-5


def sampler_of(request: ChatRequest) -> Sampler:
    """From ln probabilities (rows, V) to tokens (rows,). A request without a seed gets one of its own."""
    if request.temperature < _COLDEST:
        return likeliest
    seed = secrets.randbits(64) if request.seed is None else request.seed
    return Draws(request.temperature, request.top_p, seed)


def likeliest(log_probabilities: Any) -> Any:
    """One function for all greedy rows: mlx-lm then takes the maximum of a whole batch at once."""
    return mx.argmax(log_probabilities, axis=-1)


class Draws:
    """Draws one row's tokens, (1, V) → (1,), each with the next key after `seed`."""

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._key = mx.random.key(seed % 2**64)

    def __call__(self, log_probabilities: Any) -> Any:
        scores = log_probabilities.astype(mx.float32) / self._temperature
        if self._top_p < 1:
            scores = nucleus(scores, self._top_p)
        self._key, key = mx.random.split(self._key)
        return mx.random.categorical(scores, key=key)


def nucleus(scores: Any, top_p: float) -> Any:
    """`scores` (rows, V) with -inf for all but the likeliest that together have the probability `top_p`.

    Those as likely as the last one of them stay, too.
    """
    ranked = mx.sort(scores, axis=-1)[..., ::-1]
    probabilities = mx.softmax(ranked, axis=-1)
    before = mx.cumsum(probabilities, axis=-1) - probabilities  # what the likelier ones have together
    last = mx.maximum((before < top_p).sum(axis=-1, keepdims=True) - 1, 0)
    return mx.where(scores < mx.take_along_axis(ranked, last, axis=-1), -mx.inf, scores)

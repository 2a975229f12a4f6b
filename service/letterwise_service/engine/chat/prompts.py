"""The prompts of chat that are being read: each into a cache of its row's own, in turns, a chunk of one of them a step.

Engine thread. A prompt is read as a state is, in chunks of whole forwards from position 0, so how it is read depends on
no other row; its last token is left to the batch in which the message is generated, of which nothing is known here. A
prompt that begins as another does waits for that one, where it loses no time by it, and begins from what is kept then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ... import metrics
from ...method.request import Adapter
from .. import headroom
from ..backend import caches, mx
from ..budgets import Ids
from ..reading import lanes, views
from ..reading.packing import FORWARD_TOKENS
from .cache import ChatCache, boundary
from .rows import ChatRow


@dataclass(frozen=True)
class ChatServed:
    """The model as chat uses it.

    memory_tokens: what the caches of all rows may hold together. cache_bytes: what kept prompts may.
    published: entered around each forward with its rows' adapters. salt: keeps apart prompts of other adapters.
    lanes: the streams that each forward is spread over.
    """

    name: str
    model: Any
    tokenizer: Any
    stream: Any
    rows: int
    memory_tokens: int
    cache_bytes: int
    published: Callable[[Sequence[Adapter | None]], AbstractContextManager[None]]
    salt: Callable[[Adapter | None], str]
    lanes: Sequence[Any] = ()

    def forward(self, ids: Any, cache: Any, rows: Sequence[Adapter | None]) -> Any:
        """ids (rows, L) → logits (rows, L, V), each row with its adapter."""
        with lanes.spread(self.lanes), self.published(rows):
            return self.model(ids, cache=cache)

    def read(self, ids: Sequence[int], cache: views.Cache, adapter: Adapter | None = None) -> None:
        """Extend one row's `cache` by a chunk; it alone is evaluated, so the last layer's output is not."""
        with mx.stream(self.stream):
            self.forward(mx.array([ids]), cache, (adapter,))
            arrays = views.arrays(cache)
            headroom.ensure(arrays)
            mx.eval(arrays)


@dataclass(eq=False)
class Prompt:
    """A row's prompt: the first `read` tokens are in `cache`, which is None before its first turn."""

    row: ChatRow
    cache: views.Cache | None = None
    read: int = 0

    @property
    def ids(self) -> Ids:
        return self.row.permit.ids


class Prompts:
    """The prompts that are being read; what is read of them is kept in `kept`, and begun from there."""

    def __init__(self, served: ChatServed, kept: ChatCache) -> None:
        self._served = served
        self._kept = kept
        self._turns: list[Prompt] = []  # the one that has waited longest first

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, row: ChatRow) -> None:
        """Have a row's prompt take turns."""
        self._turns.append(Prompt(row))

    def turn(self) -> Prompt | None:
        """The prompt whose turn it is: the others get theirs before its next."""
        chosen = next((prompt for prompt in self._turns if not self._waits(prompt)), None)
        if chosen is not None:
            self._turns.remove(chosen)
            self._turns.append(chosen)
        return chosen

    def advance(self, prompt: Prompt) -> bool:
        """Read a prompt's next chunk; whether that was the last one, after which the prompt has left."""
        cache = self._begin(prompt) if prompt.cache is None else prompt.cache
        last = len(prompt.ids) - 1
        if chunk := prompt.ids[prompt.read : min(prompt.read + FORWARD_TOKENS, last)]:
            began = time.perf_counter()
            self._served.read(chunk, cache, prompt.row.permit.request.adapter)
            metrics.forward_ran(metrics.CHAT, time.perf_counter() - began)
            prompt.read += len(chunk)
            if prompt.read == boundary(prompt.ids):
                with mx.stream(self._served.stream):
                    self._kept.keep(self._salt(prompt), prompt.ids[: prompt.read], cache)
        if prompt.read == last:
            self._turns.remove(prompt)
        return prompt.read == last

    def remove(self, row: ChatRow) -> None:
        """Let go of a row's prompt, if it is being read."""
        self._turns = [prompt for prompt in self._turns if prompt.row is not row]

    def _begin(self, prompt: Prompt) -> views.Cache:
        """The cache that a prompt is read into, with what is kept of it."""
        with mx.stream(self._served.stream):
            kept, prompt.read = self._kept.take(self._salt(prompt), prompt.ids)
            cache: views.Cache = kept or caches.make_prompt_cache(self._served.model)
        prompt.cache, prompt.row.reused_tokens = cache, prompt.read
        return cache

    def _waits(self, prompt: Prompt) -> bool:
        """Whether a prompt does better to wait for what another's reading will leave kept."""
        return prompt.cache is None and any(self._spares(other, prompt) for other in self._turns)

    def _spares(self, other: Prompt, prompt: Prompt) -> bool:
        """Whether the rest of another's whole chunks, which are kept then, is no more than what they spare a prompt."""
        if other.cache is None or self._salt(other) != self._salt(prompt):
            return False
        end, shared = boundary(other.ids), _shared(other.ids, prompt.ids)
        usable = shared == end or caches.can_trim_prompt_cache(other.cache)
        return bool(usable) and 0 < end - other.read <= shared - other.row.reused_tokens

    def _salt(self, prompt: Prompt) -> str:
        return self._served.salt(prompt.row.permit.request.adapter)


def _shared(one: Ids, other: Ids) -> int:
    """The tokens of the whole chunks that two prompts begin with, as far as both are kept."""
    end = min(boundary(one), boundary(other))
    starts = range(0, end, FORWARD_TOKENS)
    return next((at for at in starts if one[at : at + FORWARD_TOKENS] != other[at : at + FORWARD_TOKENS]), end)

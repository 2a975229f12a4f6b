"""The texts that were encoded last, and what became of them: a state that is asked again is not tokenised again.

Any thread, under a lock of its own. Bounded by the characters of all texts together. Knows nothing of tokenizers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Values by text and by what else they depend on; the least recently used go first."""

    def __init__(self, characters: int) -> None:
        self._most = characters
        self._held = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, Hashable], V] = OrderedDict()

    def get(self, text: str, beside: Hashable) -> V | None:
        with self._lock:
            value = self._values.get((text, beside))
            if value is not None:
                self._values.move_to_end((text, beside))
            return value

    def put(self, text: str, beside: Hashable, value: V) -> None:
        """Remember a value; not for a text so long that it would push out all others."""
        if len(text) > self._most // 4:
            return
        with self._lock:
            if (text, beside) not in self._values:
                self._held += len(text)
            self._values[text, beside] = value
            self._values.move_to_end((text, beside))
            while self._held > self._most:
                (oldest, _), _ = self._values.popitem(last=False)
                self._held -= len(oldest)

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

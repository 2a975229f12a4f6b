"""Chat's own prompt cache: the starts of prompts that were read, for later chats that begin alike.

Engine thread. It is mlx-lm's, with its order and bounds; decisions have their store, and neither adopts the other's
records. Only whole chunks from position 0 are kept and only whole chunks are reused, so a prompt that is partly kept
is read in the very forwards in which it is read from nothing, to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import headroom
from ..backend import caches, mx
from ..reading import views
from ..reading.packing import FORWARD_TOKENS

_MOST_RECORDS = 4096  # the bytes are the bound that counts


def boundary(ids: Sequence[int]) -> int:
    """How much of a prompt is kept: its whole chunks, at least the last token being left to start from."""
    return (len(ids) - 1) // FORWARD_TOKENS * FORWARD_TOKENS


class ChatCache:
    """Kept starts of prompts, of at most `budget_bytes`. `key`: what they depend on besides their tokens."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._records = caches.LRUPromptCache(_MOST_RECORDS, budget_bytes)

    @property
    def nbytes(self) -> int:
        return int(self._records.nbytes)

    def __len__(self) -> int:
        return len(self._records)

    def clear(self) -> None:
        """Forget every record."""
        self._records = caches.LRUPromptCache(_MOST_RECORDS, self._budget_bytes)

    def take(self, key: str, ids: Sequence[int]) -> tuple[views.Cache | None, int]:
        """A cache of the longest kept start of a prompt, the caller's own, and its tokens; None and 0 for none.

        A longer record serves where its layers can go back; recurrent ones cannot, and give what is theirs exactly.
        """
        end = boundary(ids)
        cache, rest = self._records.fetch_nearest_cache(key, list(ids[: end + 1])) if end else (None, [])
        if cache is None:
            return None, 0
        tokens = end + 1 - len(rest)
        past = tokens % FORWARD_TOKENS
        if past and caches.trim_prompt_cache(cache, past) != past:
            return None, 0
        return (cache, tokens - past) if tokens > past else (None, 0)

    def keep(self, key: str, ids: Sequence[int], cache: views.Cache) -> None:
        """Keep what `cache` holds of `ids`, whole chunks; nothing where it is more than all may have or is left."""
        record = views.owned(cache)
        nbytes = views.nbytes(record)
        if nbytes <= self._budget_bytes and headroom.fits(nbytes):
            mx.eval(views.arrays(record))
            self._records.insert_cache(key, list(ids), record)

"""The bounded store of kept prefixes: a record is the cache of one state's prefix, found by its exact tokens.

Engine thread; only `describe` may be called from another. Least recently used goes first; a pinned record is in use
by a running job and is never evicted. The store knows the bytes that it holds and nothing of what they mean.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from . import views
from .events import StoreInfo

Key = tuple[str, tuple[int, ...]]


@dataclass
class Record:
    """A prefix's caches, whole and sealed. `pins`: running jobs that read it."""

    cache: views.Cache
    nbytes: int
    pins: int = 0


class PrefixStore:
    """At most `max_records` records and `budget_bytes` bytes. `salt` keeps other readers' records apart."""

    def __init__(self, *, tier: str, salt: str, max_records: int, budget_bytes: int) -> None:
        self._salt = salt
        self._max_records = max_records if tier in ("exact", "checkpoint") else 0
        self._records: OrderedDict[Key, Record] = OrderedDict()
        self._info = StoreInfo(
            tier=tier, records=0, bytes=0, budget_bytes=budget_bytes, hits=0, misses=0, stored=0, refused=0, evicted=0
        )

    @property
    def tier(self) -> str:
        return self._info.tier

    def describe(self) -> StoreInfo:
        """Counts of now, frozen; safe from any thread."""
        return self._info

    def pin(self, ids: tuple[int, ...]) -> Record | None:
        """The record of exactly these tokens, pinned; None when there is none. Pair with `unpin`."""
        record = self._records.get((self._salt, ids))
        if record is None:
            self._count(misses=self._info.misses + 1)
            return None
        self._records.move_to_end((self._salt, ids))
        record.pins += 1
        self._count(hits=self._info.hits + 1)
        return record

    def unpin(self, record: Record) -> None:
        record.pins -= 1
        assert record.pins >= 0

    def put(self, ids: tuple[int, ...], cache: views.Cache) -> Record | None:
        """Keep a prefix, evicting what must go; the record comes pinned, and is the one there already if there is one.

        None when it cannot fit.
        """
        key = (self._salt, ids)
        if (there := self._records.get(key)) is not None:  # another job computed the same bits meanwhile
            self._records.move_to_end(key)
            there.pins += 1
            return there
        if self._max_records == 0:
            return None
        nbytes = views.nbytes(cache)
        if not self._make_room(nbytes):
            self._count(refused=self._info.refused + 1)
            return None
        record = Record(cache, nbytes, pins=1)
        self._records[key] = record
        self._count(stored=self._info.stored + 1)
        return record

    def clear(self) -> None:
        self._records.clear()
        self._count()

    def check(self) -> None:
        """Walk the store and assert its invariants: bounds, byte counts, pins. For tests and on demand."""
        held = list(self._records.values())
        assert all(record.nbytes == views.nbytes(record.cache) and record.pins >= 0 for record in held)
        assert self._info.bytes == sum(record.nbytes for record in held) <= self._info.budget_bytes
        assert self._info.records == len(held) <= self._max_records

    def _make_room(self, nbytes: int) -> bool:
        """Evict unpinned records, oldest first, until one of `nbytes` fits; evict nothing if it cannot."""
        held = sum(record.nbytes for record in self._records.values())
        count = len(self._records)
        going: list[Key] = []
        for key, record in self._records.items():
            if held + nbytes <= self._info.budget_bytes and count < self._max_records:
                break
            if record.pins == 0:
                going.append(key)
                held -= record.nbytes
                count -= 1
        if held + nbytes > self._info.budget_bytes or count >= self._max_records:
            return False
        for key in going:
            del self._records[key]
        self._count(evicted=self._info.evicted + len(going))
        return True

    def _count(self, **changed: Any) -> None:
        held = self._records.values()
        self._info = replace(self._info, records=len(held), bytes=sum(record.nbytes for record in held), **changed)

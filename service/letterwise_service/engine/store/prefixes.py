"""The bounded store of kept prefixes: one shelf for the model's tier, who is reading what, and what is told of it.

Engine thread; only `describe` may be called from another. A decision's prefix is found by its tokens and its salt; chat
keeps its own elsewhere, and neither adopts the other's. Knows nothing of state text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ... import metrics
from ..events import StoreInfo
from ..reading import views
from .blocks import BlockShelf
from .shelf import Ids, Lease, NoShelf, Shelf
from .snapshots import SnapshotShelf

EXACT, CHECKPOINT, UNSUPPORTED, OFF = "exact", "checkpoint", "unsupported", "off"


class PrefixStore:
    """Kept prefixes of one model. `salt` names what they depend on besides their tokens.

    max_records bounds the checkpoint tier alone: the exact one's blocks are small and many, and bounded by their bytes.
    """

    def __init__(self, *, tier: str, salt: str, max_records: int, budget_bytes: int) -> None:
        self.tier = tier
        self._salt = salt
        self._shelf = _shelf(tier, max_records, budget_bytes)
        self._readers: dict[tuple[str, Ids], Lease] = {}
        self._info = StoreInfo(tier, 0, 0, budget_bytes, 0, 0, 0, 0, 0, 0)
        self._describe()

    def describe(self) -> StoreInfo:
        """Counts of now, frozen; safe from any thread."""
        return self._info

    def being_read(self, ids: Ids, scales: str = "") -> bool:
        """Whether another job is reading exactly this prefix to keep it: who wants it too waits, not to read it twice.

        Never so where nothing is kept, and no longer once the reader's prefix has been refused.
        """
        return (self._salted(scales), ids) in self._readers

    @contextmanager
    def lease(self, ids: Ids, scales: str = "") -> Iterator[Lease]:
        """Pin the kept start of a prefix while its job runs; the prefix counts as being read until it is whole.

        scales: names the adapter, its exact numbers and its scale, on which a prefix depends; "" for the model alone.
        """
        lease = self._shelf.take(self._salted(scales), ids)
        if not lease.whole and self.tier in (EXACT, CHECKPOINT):
            self._readers.setdefault((lease.salt, ids), lease)
        hit, nothing = lease.whole, lease.tokens == 0
        self._describe(hits=int(hit), partial_hits=int(not hit and not nothing), misses=int(nothing and not hit))
        try:
            yield lease
        finally:
            self._hand_over(lease)
            self._shelf.release(lease)
            self._describe()

    def cache(self, lease: Lease) -> views.Cache | None:
        """A cache of the lease's kept tokens, the job's own to extend; None when there are none."""
        return self._shelf.cache(lease)

    def keep(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """Keep the first `tokens` of the prefix, which `cache` holds: a chunk boundary, or the whole, sealed."""
        self._shelf.keep(lease, cache, tokens)
        if lease.whole or lease.refused:
            self._hand_over(lease)
        self._describe()

    def leave(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """The job ends with `tokens` of its prefix read: keep what spares the next reader the way so far."""
        self._shelf.leave(lease, cache, tokens)

    def clear(self) -> None:
        """Let go of everything that no job uses."""
        self._shelf.clear()
        self._describe()

    def check(self, *, idle: bool = False) -> None:
        """Walk the store and assert its invariants; idle: also that no job holds anything."""
        self._shelf.check()
        assert all(not lease.whole and not lease.refused for lease in self._readers.values())
        assert len(self._readers) <= self._shelf.pins()
        assert not idle or (not self._readers and not self._shelf.pins()), "a job that ended holds something"
        counts = self._shelf.counts
        assert (self._info.records, self._info.bytes) == (counts.records, counts.bytes)

    def _salted(self, scales: str) -> str:
        return f"{self._salt}, {scales}" if scales else self._salt

    def _hand_over(self, lease: Lease) -> None:
        """The lease's job reads its prefix no more, if it was the one that did: whoever waits may go on."""
        if self._readers.get((lease.salt, lease.ids)) is lease:
            del self._readers[lease.salt, lease.ids]

    def _describe(self, *, hits: int = 0, partial_hits: int = 0, misses: int = 0) -> None:
        """Renew the counts that others see, with what has just been looked up."""
        before, counts = self._info, self._shelf.counts
        self._info = StoreInfo(
            tier=self.tier,
            records=counts.records,
            bytes=counts.bytes,
            budget_bytes=before.budget_bytes,
            hits=before.hits + hits,
            partial_hits=before.partial_hits + partial_hits,
            misses=before.misses + misses,
            stored=counts.stored,
            refused=counts.refused,
            evicted=counts.evicted,
        )
        metrics.prefix_store_changed(
            self.tier,
            records=counts.records,
            held_bytes=counts.bytes,
            hits=hits,
            partial_hits=partial_hits,
            misses=misses,
            stored=counts.stored - before.stored,
            refused=counts.refused - before.refused,
            evicted=counts.evicted - before.evicted,
        )


def _shelf(tier: str, max_records: int, budget_bytes: int) -> Shelf:
    if tier == EXACT:
        return BlockShelf(budget_bytes)
    return SnapshotShelf(budget_bytes, max_records) if tier == CHECKPOINT else NoShelf()

"""The checkpoint tier: whole states of caches that cannot be cut, recurrent and windowed layers among them.

Engine thread. A record is a copy of a prefix's caches at one length. Kept are a prefix's end, its last chunk boundary
(from which the same state, grown, goes on) and the boundary at which it leaves what another record shares with it (from
which the next state with that start goes on). Least recently used goes first, never what a job holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import headroom
from ..backend import mx
from ..reading import views
from ..reading.packing import FORWARD_TOKENS
from .shelf import Counts, Ids, Lease


@dataclass(eq=False)
class Snapshot:
    """The caches of exactly the tokens `ids`, in arrays of their own. `used`: when last."""

    salt: str
    ids: Ids
    cache: views.Cache
    nbytes: int
    pins: int = 0
    used: int = 0


class SnapshotShelf:
    """At most `max_records` snapshots of at most `budget_bytes` together."""

    def __init__(self, budget_bytes: int, max_records: int) -> None:
        self._budget = budget_bytes
        self._max_records = max_records
        self._held: dict[tuple[str, Ids], Snapshot] = {}
        self._nothing = Snapshot("", (), [], 0)
        self._clock = 0
        self.counts = Counts()

    def take(self, salt: str, ids: Ids) -> Lease:
        self._clock += 1
        starts = [held for held in self._held.values() if held.salt == salt and _serves(held.ids, ids)]
        best = max(starts, key=lambda held: len(held.ids), default=self._nothing)
        best.used = self._clock
        best.pins += 1
        return Lease(salt, ids, len(best.ids), best, self._stops(salt, ids, len(best.ids)))

    def cache(self, lease: Lease) -> views.Cache | None:
        return views.copy(lease.at.cache) if lease.tokens else None

    def keep(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        if tokens in lease.stops or tokens == len(lease.ids):
            self._move(lease, cache, tokens)

    def leave(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        if tokens > lease.tokens and tokens % FORWARD_TOKENS == 0:
            self._move(lease, cache, tokens)

    def release(self, lease: Lease) -> None:
        lease.at.pins -= 1
        assert lease.at.pins >= 0, "a lease was released twice"

    def clear(self) -> None:
        for held in [held for held in self._held.values() if not held.pins]:
            self._evict(held)

    def pins(self) -> int:
        return self._nothing.pins + sum(held.pins for held in self._held.values())

    def check(self) -> None:
        for key, held in self._held.items():
            assert key == (held.salt, held.ids)
            assert held.pins >= 0
            assert held.nbytes == views.nbytes(held.cache)
        assert self.counts.records == len(self._held) <= self._max_records
        assert self.counts.bytes == sum(held.nbytes for held in self._held.values()) <= self._budget

    def _stops(self, salt: str, ids: Ids, start: int) -> tuple[int, ...]:
        """The boundaries past `start` at which the state is worth keeping: where others leave it, and the last."""
        last = len(ids) // FORWARD_TOKENS * FORWARD_TOKENS
        shared = max((_shared(held.ids, ids) for held in self._held.values() if held.salt == salt), default=0)
        return tuple(sorted({stop for stop in (shared, last) if start < stop < len(ids)}))

    def _move(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """Keep the state at `tokens` and let the lease stand on it; on what it stood on, it stands no more."""
        if lease.refused:
            return
        self._clock += 1
        lease.at.pins -= 1
        try:
            held = self._held.get((lease.salt, lease.ids[:tokens])) or self._add(lease.salt, lease.ids[:tokens], cache)
        except BaseException:  # there was no memory for the copy: the lease is released as it stands
            lease.at.pins += 1
            raise
        if held is None:
            lease.refused = True
            self.counts.refused += 1
        else:
            held.used = self._clock
            lease.at, lease.tokens = held, tokens
        lease.at.pins += 1

    def _add(self, salt: str, ids: Ids, cache: views.Cache) -> Snapshot | None:
        own = views.owned(cache)
        nbytes = views.nbytes(own)
        if not self._make_room(nbytes) or not headroom.fits(nbytes):
            return None
        mx.eval(views.arrays(own))
        held = self._held[salt, ids] = Snapshot(salt, ids, own, nbytes)
        self.counts.stored += 1
        self.counts.records += 1
        self.counts.bytes += nbytes
        return held

    def _make_room(self, nbytes: int) -> bool:
        """Whether one record of `nbytes` more fits, others evicted for it; nothing is evicted in vain."""
        idle = sorted((held for held in self._held.values() if not held.pins), key=lambda held: held.used)
        over_bytes = self.counts.bytes + nbytes - self._budget
        over_records = self.counts.records + 1 - self._max_records
        if over_bytes > sum(held.nbytes for held in idle) or over_records > len(idle):
            return False
        while self.counts.bytes + nbytes > self._budget or self.counts.records >= self._max_records:
            self._evict(idle.pop(0))
        return True

    def _evict(self, held: Snapshot) -> None:
        del self._held[held.salt, held.ids]
        self.counts.evicted += 1
        self.counts.records -= 1
        self.counts.bytes -= held.nbytes


def _serves(held: Ids, wanted: Ids) -> bool:
    """Whether a record goes where computing would have had a chunk's end: a boundary, or exactly the wanted length."""
    return wanted[: len(held)] == held and (len(held) == len(wanted) or len(held) % FORWARD_TOKENS == 0)


def _shared(held: Ids, wanted: Ids) -> int:
    """The last boundary up to which two prefixes are the same."""
    tokens = 0
    while (chunk := wanted[tokens : tokens + FORWARD_TOKENS]) == held[tokens : tokens + FORWARD_TOKENS] and (
        len(chunk) == FORWARD_TOKENS
    ):
        tokens += FORWARD_TOKENS
    return tokens

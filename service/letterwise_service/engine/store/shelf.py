"""What the tiers of the prefix store have in common: the lease that a job holds, the counts, and what a shelf does.

Engine thread. Knows token ids and bytes, and nothing of requests or jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..reading import views

Ids: TypeAlias = tuple[int, ...]


@dataclass
class Counts:
    """What is held, and what has happened since the start. `refused`: prefixes of which a part could not be kept."""

    records: int = 0
    bytes: int = 0
    stored: int = 0
    refused: int = 0
    evicted: int = 0


@dataclass(eq=False)
class Lease:
    """A job's hold on the kept start of its prefix `ids`: `tokens` of them, pinned at `at` (the shelf's own).

    salt: keeps apart what must never serve for each other: other readers, other models, other adapter scales.
    stops: where the job must come to a halt, for the state there is to be kept; boundaries, rising.
    refused: whether some of the prefix found no room.
    """

    salt: str
    ids: Ids
    tokens: int
    at: Any
    stops: tuple[int, ...] = ()
    refused: bool = False

    @property
    def whole(self) -> bool:
        """Whether the whole prefix is kept."""
        return self.tokens == len(self.ids)


class Shelf(Protocol):
    """One tier's keeping. `take` and `release` are a pair: what a lease stands on is not evicted between them."""

    counts: Counts

    def take(self, salt: str, ids: Ids) -> Lease:
        """Pin the longest kept start of `ids`: all of it, up to a chunk boundary, or nothing."""

    def cache(self, lease: Lease) -> views.Cache | None:
        """A cache of exactly the lease's tokens, its caller's own to extend; None for a lease of nothing."""

    def keep(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """Keep what `cache` holds, the first `tokens` of the lease's ids, and move the lease on to it.

        `tokens` is a chunk boundary, or the end and then `cache` is sealed. A shelf may keep some boundaries only.
        Marks the lease as refused when no room can be made, and evicts nothing then.
        """

    def leave(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """The job ends here, its prefix not whole: keep what spares the next one the way so far."""

    def release(self, lease: Lease) -> None:
        """Pin nothing for this job any more; once for every `take`."""

    def clear(self) -> None:
        """Let go of everything that is not pinned."""

    def pins(self) -> int:
        """Leases that are out, by what is pinned."""

    def check(self) -> None:
        """Walk everything and assert the invariants: bounds, byte counts, pins, shape."""


class NoShelf:
    """Keeps nothing: for models whose caches cannot be kept, and for the store when it is off."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._out = 0

    def take(self, salt: str, ids: Ids) -> Lease:
        self._out += 1
        return Lease(salt, ids, 0, None)

    def cache(self, lease: Lease) -> views.Cache | None:
        return None

    def keep(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        pass

    def leave(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        pass

    def release(self, lease: Lease) -> None:
        self._out -= 1

    def clear(self) -> None:
        pass

    def pins(self) -> int:
        return self._out

    def check(self) -> None:
        assert self.counts == Counts()

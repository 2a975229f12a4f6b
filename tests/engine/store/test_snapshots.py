"""The checkpoint tier against a plain model of it: which states are kept, pins, both bounds, least recently used."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from letterwise_service.engine.backend import caches, mx
from letterwise_service.engine.reading import views
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.store.shelf import Ids, Lease
from letterwise_service.engine.store.snapshots import SnapshotShelf
from tests.engine.store.test_blocks import state

UNIT, RECURRENT = 2 * 2 * 4, 5 * 4  # bytes of one token's keys and values, and of the state that does not grow


def computed(ids: Ids, tokens: int) -> list[Any]:
    """An attention layer with room to spare and a recurrent one whose state is a slice of something larger."""
    sums = mx.cumsum(mx.array(ids[:tokens], dtype=mx.float32))
    plain, recurrent = caches.KVCache(), caches.ArraysCache(2)
    plain.update_and_fetch(*(mx.stack([sums, sums + i], axis=-1)[None, None] for i in (1, 2)))
    recurrent[0] = mx.broadcast_to(sums[-1], (1, 1000, 5))[:, -1:] * 1
    mx.eval(views.arrays([plain, recurrent]))
    return [plain, recurrent]


def size(tokens: int) -> int:
    return tokens * UNIT + RECURRENT


def same(cache: Any, ids: Ids) -> bool:
    """Whether a cache is bit for bit that of these tokens."""
    right = computed(ids, len(ids))
    keys, values = cache[0].keys_and_values()
    pairs = zip((keys, values, cache[1][0]), (*right[0].keys_and_values(), right[1][0]), strict=True)
    return cache[0].offset == len(ids) and all(mx.array_equal(a, b).item() for a, b in pairs)


def ends(lease: Lease, *, start: int = 0) -> list[int]:
    """Where the steps of a job on two lanes end: every second chunk, at the stops, and at the end."""
    found: list[int] = []
    for stop in (*lease.stops, len(lease.ids)):
        found += [*range(max(start, lease.tokens) + 2 * FORWARD_TOKENS, stop, 2 * FORWARD_TOKENS), stop]
        start = stop
    return sorted(set(found))


def read(shelf: SnapshotShelf, ids: Ids, salt: str = "s") -> Lease:
    """Take a prefix, compute and keep what is missing; the lease is still out."""
    lease = shelf.take(salt, ids)
    for end in () if lease.whole else ends(lease):
        shelf.keep(lease, computed(ids, end), end)
    return lease


@dataclass
class Held:
    used: int
    pins: int = 0


@dataclass
class Plain:
    """What the shelf should be: every prefix whose state is held."""

    budget: int
    records: int
    held: dict[Ids, Held] = field(default_factory=dict)
    clock: int = 0
    evicted: int = 0
    refused: int = 0

    @property
    def bytes(self) -> int:
        return sum(size(len(ids)) for ids in self.held)

    def longest(self, ids: Ids) -> Ids:
        starts = [one for one in self.held if ids[: len(one)] == one]
        return max((one for one in starts if one == ids or len(one) % FORWARD_TOKENS == 0), key=len, default=())

    def put(self, ids: Ids) -> bool:
        if ids in self.held:
            return True
        idle = sorted((one for one, held in self.held.items() if not held.pins), key=lambda one: self.held[one].used)
        gone = 0
        while self.bytes - sum(map(size, map(len, idle[:gone]))) + size(len(ids)) > self.budget or (
            len(self.held) - gone >= self.records
        ):
            if gone == len(idle):
                return False
            gone += 1
        for one in idle[:gone]:
            del self.held[one]
        self.evicted += gone
        self.held[ids] = Held(0)
        return True


class ShelfBesideItsModel(RuleBasedStateMachine):
    """Random jobs that take, keep, leave and release, on states that grow and diverge."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = SnapshotShelf(12 * size(FORWARD_TOKENS), 4)
        self.plain = Plain(12 * size(FORWARD_TOKENS), 4)
        self.out: list[tuple[Lease, Ids, list[int]]] = []  # with where it stands, and its steps to come
        self.refused: list[Lease] = []

    @rule(chunks=st.lists(st.integers(1, 2), max_size=5), tail=st.integers(0, 60))
    def take(self, chunks: list[int], tail: int) -> None:
        ids, plain = state(*chunks, tail=tail), self.plain
        if not ids or len(self.out) == 3:
            return
        plain.clock += 1
        path = plain.longest(ids)
        lease = self.shelf.take("s", ids)
        assert lease.tokens == len(path)
        if path:
            plain.held[path].used = plain.clock
            plain.held[path].pins += 1
            assert same(self.shelf.cache(lease), path)
        else:
            assert self.shelf.cache(lease) is None
        self.out.append((lease, path, ends(lease)))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.out) - 1))
        lease, path, steps = self.out[i]
        if lease.whole or not steps:
            return
        end = steps.pop(0)
        self.shelf.keep(lease, computed(lease.ids, end), end)
        if end in lease.stops or end == len(lease.ids):
            path = self.moved(lease, path, end)
        assert lease.tokens == len(path)
        self.out[i] = (lease, path, steps)

    def moved(self, lease: Lease, path: Ids, end: int) -> Ids:
        """Where the lease should stand after the state at `end` was offered; a lease is refused but once."""
        if any(lease is one for one in self.refused):
            return path
        self.plain.clock += 1
        if path:
            self.plain.held[path].pins -= 1
        if self.plain.put(lease.ids[:end]):
            path = lease.ids[:end]
            self.plain.held[path].used = self.plain.clock
        else:
            self.plain.refused += 1
            self.refused.append(lease)
        if path:
            self.plain.held[path].pins += 1
        return path

    @precondition(lambda self: self.out)
    @rule(data=st.data(), leaves=st.booleans())
    def release(self, data: st.DataObject, leaves: bool) -> None:
        lease, path, steps = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if leaves and steps and (done := steps[0]) < len(lease.ids) and not lease.whole:
            self.shelf.leave(lease, computed(lease.ids, done), done)
            path = self.moved(lease, path, done)
        if path:
            self.plain.held[path].pins -= 1
        self.shelf.release(lease)

    @rule()
    def clear(self) -> None:
        idle = [one for one, held in self.plain.held.items() if not held.pins]
        for one in idle:
            del self.plain.held[one]
        self.plain.evicted += len(idle)
        self.shelf.clear()

    @invariant()
    def agrees(self) -> None:
        self.shelf.check()
        counts, plain = self.shelf.counts, self.plain
        assert {ids: (one.used, one.pins) for (_, ids), one in self.shelf._held.items()} == {
            ids: (one.used, one.pins) for ids, one in plain.held.items()
        }
        assert (counts.records, counts.bytes) == (len(plain.held), plain.bytes)
        assert (counts.evicted, counts.refused) == (plain.evicted, plain.refused)
        assert counts.records <= 4
        assert counts.bytes <= 12 * size(FORWARD_TOKENS)
        assert self.shelf.pins() == len(self.out)


TestShelfBesideItsModel = ShelfBesideItsModel.TestCase
TestShelfBesideItsModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def shelf(*, records: int = 8, tokens: int = 100_000) -> SnapshotShelf:
    return SnapshotShelf(size(tokens), records)


def kept(one: SnapshotShelf) -> list[int]:
    return sorted(len(ids) for _, ids in one._held)


def test_end_and_last_boundary_are_kept() -> None:
    """A state leaves two records, however long it is; grown, it goes on from the second."""
    one = shelf()
    one.release(read(one, state(1, 2, 3, 4, 5, tail=30)))
    assert kept(one) == [640, 670]
    grown = one.take("s", state(1, 2, 3, 4, 5, tail=90))
    assert (grown.tokens, grown.stops) == (640, ())
    one.release(grown)


def test_state_that_ends_at_a_boundary_is_kept_once() -> None:
    """There the end is the boundary, and what comes before it stays computed."""
    one = shelf()
    one.release(read(one, state(1, 2, 3)))
    assert kept(one) == [384]


def test_third_state_goes_on_where_the_second_left_the_first() -> None:
    """States with one beginning and many ends: the boundary where they part is kept when it is seen to be one."""
    one = shelf()
    one.release(read(one, state(1, 2, 3, 4, 5, 6, tail=10)))
    second = one.take("s", state(1, 2, 3, 7, 7, 7, tail=10))
    assert (second.tokens, second.stops) == (0, (384, 768))
    one.release(second)
    one.release(read(one, state(1, 2, 3, 7, 7, 7, tail=10)))
    third = one.take("s", state(1, 2, 3, 8, 8, 8, tail=10))
    assert third.tokens == 384
    assert same(one.cache(third), state(1, 2, 3))
    one.release(third)


def test_job_that_stops_leaves_its_way_so_far() -> None:
    """The next job on the same state goes on from where the stopped one was."""
    one, ids = shelf(), state(1, 2, 3, 4, 5, 6, tail=10)
    lease = one.take("s", ids)
    one.keep(lease, computed(ids, 256), 256)
    assert kept(one) == []
    one.leave(lease, computed(ids, 256), 256)
    one.release(lease)
    lease = one.take("s", ids)
    assert lease.tokens == 256
    assert same(one.cache(lease), ids[:256])
    one.release(lease)


def test_only_the_exact_length_or_a_boundary_serves() -> None:
    """A record inside a chunk of the wanted state is another forward's bits; another salt's is another model's."""
    one = shelf()
    one.release(read(one, state(1, tail=50)))
    for ids, tokens in ((state(1, tail=51), 128), (state(1, tail=50), 178), (state(1, tail=49), 128), (state(2), 0)):
        lease = one.take("s", ids)
        assert lease.tokens == tokens
        one.release(lease)
    lease = one.take("other", state(1, tail=50))
    assert lease.tokens == 0
    one.release(lease)


def test_a_ninth_record_pushes_the_oldest_out() -> None:
    """Eight are kept by default rules, the ones used last."""
    one = shelf()
    for chunk in range(8):
        one.release(read(one, state(chunk + 10)))
    one.release(one.take("s", state(10)))
    one.release(read(one, state(30)))
    assert one.counts.records == 8
    assert [chunk for chunk in range(8) if ("s", state(chunk + 10)) not in one._held] == [1]


def test_end_takes_the_place_of_its_own_boundary() -> None:
    """Where one record is all there is room for, it is the whole state."""
    for one in (shelf(records=1), shelf(tokens=400)):
        lease = read(one, state(1, 2, tail=30))
        assert lease.whole
        assert kept(one) == [286]
        one.release(lease)
        one.check()


def test_pinned_records_are_not_evicted_and_nothing_is_in_vain() -> None:
    """A newcomer that would need the room of a state in use is refused, once, and pushes nothing out."""
    one = shelf(records=2)
    first, second = read(one, state(1)), read(one, state(2))
    late = read(one, state(3, 3, tail=3))
    assert (late.refused, late.tokens, one.counts.refused, one.counts.evicted) == (True, 0, 1, 0)
    for lease in (first, second, late):
        one.release(lease)
    assert kept(one) == [128, 128]
    one.release(read(one, state(4)))
    assert one.counts.evicted == 1


def test_records_hold_no_more_than_they_count() -> None:
    """Neither a buffer's spare room nor the array that a state is a slice of lives on in a record."""
    one, ids = shelf(), state(1, 2, 3)
    gc.collect()  # other tests' models
    before = mx.get_active_memory()
    lease = one.take("s", ids)
    big = mx.zeros((1, 500_000, 5))
    cache = computed(ids, len(ids))
    cache[1][0] = big[:, -1:]
    mx.eval(views.arrays(cache))
    one.keep(lease, cache, len(ids))
    one.release(lease)
    del cache, big, lease
    assert 0 < mx.get_active_memory() - before <= one.counts.bytes + 3 * 16_384  # whole pages
    one.clear()
    assert mx.get_active_memory() == before


def test_extending_a_served_cache_changes_no_record() -> None:
    """What a job writes into its cache is its own."""
    one = shelf()
    one.release(read(one, state(1)))
    lease = one.take("s", state(1))
    cache = one.cache(lease)
    assert cache is not None
    cache[0].update_and_fetch(mx.ones((1, 1, 300, 2)), mx.ones((1, 1, 300, 2)))
    cache[1][0] = mx.zeros((1, 1, 5))
    mx.eval(views.arrays(cache))
    assert same(one.cache(lease), state(1))
    one.release(lease)


def test_check_finds_a_record_that_grew() -> None:
    """The walk notices a cache that somebody wrote into."""
    one = shelf()
    one.release(read(one, state(1)))
    one.check()
    next(iter(one._held.values())).cache[0].update_and_fetch(mx.zeros((1, 1, 1, 2)), mx.zeros((1, 1, 1, 2)))
    with pytest.raises(AssertionError):
        one.check()

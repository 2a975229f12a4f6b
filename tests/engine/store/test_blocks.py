"""The exact tier against a plain model of it: shared blocks, pins, bounds, and least recently used first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from letterwise_service.engine.backend import caches, mx
from letterwise_service.engine.reading import views
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.store.blocks import BlockShelf
from letterwise_service.engine.store.shelf import Ids, Lease

UNIT = 2 * 2 * 4  # bytes of one token in `computed`: keys and values, two numbers each
CHUNK = FORWARD_TOKENS * UNIT


def computed(ids: Ids, tokens: int, *, sealed: bool = False) -> list[Any]:
    """One layer after the first tokens: its numbers tell the tokens up to each; with spare room, unless sealed."""
    layer = caches.KVCache()
    sums = mx.cumsum(mx.array(ids[:tokens], dtype=mx.float32))
    layer.update_and_fetch(*(mx.stack([sums, sums + i], axis=-1)[None, None] for i in (1, 2)))
    cache = views.seal([layer]) if sealed else [layer]
    mx.eval(views.arrays(cache))
    return cache


def same(cache: Any, ids: Ids) -> bool:
    """Whether a cache is bit for bit that of these tokens."""
    right = computed(ids, len(ids), sealed=True)[0]
    (layer,) = cache
    pairs = zip(layer.keys_and_values(), (right.keys, right.values), strict=True)
    return layer.offset == len(ids) and all(mx.array_equal(a, b).item() for a, b in pairs)


def read(shelf: BlockShelf, ids: Ids, salt: str = "s") -> Lease:
    """Take a prefix, compute and keep what is missing; the lease is still out."""
    lease = shelf.take(salt, ids)
    if not lease.whole:
        for end in [*range(lease.tokens + FORWARD_TOKENS, len(ids), FORWARD_TOKENS), len(ids)]:
            shelf.keep(lease, computed(ids, end, sealed=end == len(ids)), end)
    return lease


def state(*chunks: int, tail: int = 0) -> Ids:
    """Whole chunks, each of one id, and `tail` tokens more."""
    return tuple(id for chunk in chunks for id in [chunk] * FORWARD_TOKENS) + (9,) * tail


@dataclass
class Held:
    used: int
    pins: int = 0


@dataclass
class Plain:
    """What the shelf should be: every path that is held, by all its tokens."""

    budget: int
    held: dict[Ids, Held] = field(default_factory=dict)
    runs: set[Ids] = field(default_factory=set)  # joined, a job using them
    spare: list[Ids] = field(default_factory=list)  # joined, nobody using them
    clock: int = 0
    root: int = 0  # pins of nothing
    stored: int = 0
    evicted: int = 0
    refused: int = 0

    @property
    def bytes(self) -> int:
        return UNIT * (sum(own_tokens(path) for path in self.held) + sum(len(path) for path in self.spare))

    def longest(self, ids: Ids) -> Ids:
        return max((path for path in paths(ids) if path in self.held), key=len, default=())

    def pin(self, path: Ids, by: int = 1) -> None:
        if not path:
            self.root += by
            return
        self.held[path].pins += by
        if by > 0 and path in self.spare:
            self.spare.remove(path)
            self.runs.add(path)
        elif not self.held[path].pins:
            self.runs.discard(path)

    def leaves(self) -> list[Ids]:
        parents = {parent(path) for path in self.held}
        return [path for path, one in self.held.items() if path not in parents and not one.pins]

    def idle(self) -> int:
        used = {start for path, one in self.held.items() if one.pins for start in paths(path)}
        return UNIT * sum(own_tokens(path) for path in self.held if path not in used)

    def make_room(self, nbytes: int) -> bool:
        while self.spare and self.bytes + nbytes > self.budget:
            self.spare.pop(0)
        if self.bytes + nbytes - self.budget > self.idle():
            return False
        while self.bytes + nbytes > self.budget:
            del self.held[min(self.leaves(), key=lambda path: self.held[path].used)]
            self.evicted += 1
        return True


def paths(ids: Ids) -> list[Ids]:
    return [ids[: end + FORWARD_TOKENS] for end in range(0, len(ids), FORWARD_TOKENS)]


def own_tokens(path: Ids) -> int:
    return (len(path) - 1) % FORWARD_TOKENS + 1


def parent(path: Ids) -> Ids:
    return path[: len(path) - own_tokens(path)]


class ShelfBesideItsModel(RuleBasedStateMachine):
    """Random jobs that take, keep a chunk or two at a time and release, on states that grow and diverge."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = BlockShelf(7 * CHUNK)
        self.plain = Plain(7 * CHUNK)
        self.out: list[tuple[Lease, Ids]] = []  # with the path that the plain model says it stands on

    @rule(chunks=st.lists(st.integers(1, 2), max_size=8), tail=st.integers(0, 60))
    def take(self, chunks: list[int], tail: int) -> None:
        ids, plain = state(*chunks, tail=tail), self.plain
        if not ids or len(self.out) == 4:
            return
        plain.clock += 1
        path = plain.longest(ids)
        for start in paths(path):
            plain.held[start].used = plain.clock
        plain.pin(path)
        lease = self.shelf.take("s", ids)
        assert lease.tokens == len(path)
        cache = self.shelf.cache(lease)
        assert (cache is None) == (not path)
        if cache is not None:
            plain.runs.add(path)
            assert same(cache, path)
        self.out.append((lease, path))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), lanes=st.integers(1, 2))
    def keep(self, data: st.DataObject, lanes: int) -> None:
        i = data.draw(st.integers(0, len(self.out) - 1))
        lease, path = self.out[i]
        if lease.whole or lease.refused:
            return
        end = min(len(lease.ids), lease.tokens + lanes * FORWARD_TOKENS)
        self.plain.clock += 1
        for step in [one for one in paths(lease.ids) if len(path) < len(one) <= end]:
            if not self.put(step, lease.ids):
                self.plain.refused += 1
                break
            self.plain.held[step].used = self.plain.clock
            self.plain.pin(step)
            self.plain.pin(path, -1)
            path = step
        if path == lease.ids:
            self.plain.runs.add(path)
        self.shelf.keep(lease, computed(lease.ids, end, sealed=end == len(lease.ids)), end)
        assert (lease.tokens, lease.refused) == (len(path), len(path) < end)
        self.out[i] = (lease, path)

    def put(self, step: Ids, whole: Ids) -> bool:
        if step in self.plain.held:
            return True
        if len(whole) * UNIT > self.plain.budget or not self.plain.make_room(own_tokens(step) * UNIT):
            return False
        self.plain.held[step] = Held(0)
        self.plain.stored += 1
        return True

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, path = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        joined = path in self.plain.runs
        self.plain.pin(path, -1)
        if joined and path not in self.plain.runs and self.plain.bytes + len(path) * UNIT <= self.plain.budget:
            self.plain.spare = [*self.plain.spare, path][-4:]
        self.shelf.release(lease)

    @rule()
    def clear(self) -> None:
        self.plain.spare.clear()
        while leaves := self.plain.leaves():
            del self.plain.held[leaves[0]]
            self.plain.evicted += 1
        self.shelf.clear()

    @invariant()
    def agrees(self) -> None:
        self.shelf.check()
        counts, plain = self.shelf.counts, self.plain
        assert (counts.records, counts.bytes) == (len(plain.held), plain.bytes)
        assert (counts.stored, counts.evicted, counts.refused) == (plain.stored, plain.evicted, plain.refused)
        assert counts.bytes <= 7 * CHUNK
        assert self.shelf.pins() == len(self.out)
        for path in plain.held:
            assert self.holds(path)

    def holds(self, path: Ids) -> bool:
        block = self.shelf._root
        for start in paths(path):
            found = block.children.get(("s", start[len(parent(start)) :]))
            if found is None:
                return False
            block = found
        return block.pins == self.plain.held[path].pins and block.used == self.plain.held[path].used


TestShelfBesideItsModel = ShelfBesideItsModel.TestCase
TestShelfBesideItsModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_states_that_start_alike_share_blocks() -> None:
    """A second state adds only the blocks after the last common boundary, and each is served its own tokens."""
    shelf = BlockShelf(100 * CHUNK)
    first, second = state(1, 2, 3, tail=5), state(1, 2, 4, tail=7)
    shelf.release(read(shelf, first))
    lease = shelf.take("s", second)
    assert lease.tokens == 2 * FORWARD_TOKENS
    assert same(shelf.cache(lease), second[: 2 * FORWARD_TOKENS])
    shelf.release(lease)
    shelf.release(read(shelf, second))
    assert shelf.counts.records == 4 + 2
    for ids in (first, second):
        lease = shelf.take("s", ids)
        assert lease.whole
        assert same(shelf.cache(lease), ids)
        shelf.release(lease)


def test_partial_block_serves_its_own_end_alone() -> None:
    """A state that goes on inside another's last chunk computes that chunk again: its bits are another forward's."""
    shelf = BlockShelf(100 * CHUNK)
    shelf.release(read(shelf, state(1, tail=50)))
    for other in (state(1, tail=49), state(1, tail=51), state(1, 9)):
        lease = shelf.take("s", other)
        assert lease.tokens == FORWARD_TOKENS
        shelf.release(lease)


def test_other_salts_never_serve() -> None:
    """What another reader, model or adapter kept is not found."""
    shelf = BlockShelf(100 * CHUNK)
    shelf.release(read(shelf, state(1, 2), "one"))
    lease = shelf.take("other", state(1, 2))
    assert lease.tokens == 0
    assert shelf.cache(lease) is None
    shelf.release(lease)


def test_leaves_go_before_what_they_stand_on() -> None:
    """The least recently used state loses its last block first, and a block that another state uses stays."""
    shelf = BlockShelf(5 * CHUNK)
    shelf.release(read(shelf, state(1, 2, 3)))
    shelf.release(read(shelf, state(1, 4)))
    shelf.release(read(shelf, state(5, 6)))
    found = [shelf.take("s", ids) for ids in (state(1, 2, 3), state(1, 4), state(5, 6))]
    assert [lease.tokens // FORWARD_TOKENS for lease in found] == [2, 2, 2]
    for lease in found:
        shelf.release(lease)
    shelf.check()


def test_pinned_blocks_are_not_evicted_and_nothing_is_in_vain() -> None:
    """A state in use stays whole; one that would need its room is refused, and pushes nothing else out."""
    shelf = BlockShelf(5 * CHUNK)
    used = read(shelf, state(1, 2, 3))
    shelf.release(read(shelf, state(4)))
    late = read(shelf, state(5, 6, 7))
    assert late.refused
    assert late.tokens == 2 * FORWARD_TOKENS
    assert same(shelf.cache(used), state(1, 2, 3))
    shelf.release(late)
    shelf.release(used)
    assert shelf.counts.refused == 1
    shelf.check()


def test_prefix_larger_than_the_budget_pushes_nothing_out() -> None:
    """What can never be whole is refused at its first block, once."""
    shelf = BlockShelf(5 * CHUNK)
    shelf.release(read(shelf, state(1, 2)))
    lease = read(shelf, state(3, 4, 5, 6, 7, tail=1))
    assert (lease.refused, lease.tokens) == (True, 0)
    assert (shelf.counts.records, shelf.counts.refused, shelf.counts.evicted) == (2, 1, 0)
    shelf.release(lease)


def test_jobs_on_one_state_share_one_run() -> None:
    """The joined copy is made once for all who use it, stays behind them while there is room, and is counted then."""
    shelf = BlockShelf(6 * CHUNK)
    leases = [read(shelf, state(1, 2)) for _ in range(3)]
    caches_of = [shelf.cache(lease) for lease in leases]
    assert all(mx.array_equal(one[0].keys, caches_of[0][0].keys).item() for one in caches_of if one)  # type: ignore[index]
    assert shelf.counts.bytes == 2 * CHUNK
    for lease in leases:
        shelf.release(lease)
    assert shelf.counts.bytes == 4 * CHUNK
    shelf.release(read(shelf, state(3, 4, 5)))
    assert shelf.counts.records == 5
    assert shelf.counts.bytes == 5 * CHUNK
    assert shelf.counts.evicted == 0


def test_extending_a_served_cache_changes_no_record() -> None:
    """What a job writes into its cache is its own."""
    shelf = BlockShelf(100 * CHUNK)
    shelf.release(read(shelf, state(1)))
    lease = shelf.take("s", state(1))
    cache = shelf.cache(lease)
    assert cache is not None
    for tokens in (1, 300):
        cache[0].update_and_fetch(mx.ones((1, 1, tokens, 2)), mx.ones((1, 1, tokens, 2)))
    mx.eval(views.arrays(cache))
    assert same(shelf.cache(lease), state(1))
    shelf.release(lease)


def test_release_twice_is_noticed() -> None:
    """A lease is given back once."""
    shelf = BlockShelf(100 * CHUNK)
    lease = read(shelf, state(1))
    shelf.release(lease)
    with pytest.raises(AssertionError, match="released twice"):
        shelf.release(lease)


def test_check_finds_what_is_wrong() -> None:
    """The walk notices a block whose arrays are not those that were counted."""
    shelf = BlockShelf(100 * CHUNK)
    shelf.release(read(shelf, state(1)))
    shelf.check()
    block = next(iter(shelf._root.children.values()))
    block.layers = ()
    with pytest.raises(AssertionError):
        shelf.check()

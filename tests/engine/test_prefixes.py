"""The store of kept prefixes against a plain model of it: bounds, pins, least recently used first, memory freed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from letterwise_service.engine.backend import caches, mx
from letterwise_service.engine.prefixes import PrefixStore, Record

UNIT = 256  # bytes of one token in `cache`


def cache(tokens: int) -> list[Any]:
    """One plain attention layer with `tokens` tokens, 256 bytes each."""
    layer = caches.KVCache()
    layer.update_and_fetch(mx.zeros((1, 2, tokens, 16)), mx.zeros((1, 2, tokens, 16)))
    layer.keys, layer.values = (mx.contiguous(a) for a in layer.keys_and_values())
    mx.eval(layer.keys, layer.values)
    return [layer]


def store(*, tokens: int = 10, records: int = 4, tier: str = "exact") -> PrefixStore:
    return PrefixStore(tier=tier, salt="s", max_records=records, budget_bytes=tokens * UNIT)


def keep(kept: PrefixStore, key: int, tokens: int) -> Record | None:
    """Put a record and let go of it."""
    record = kept.put((key,), cache(tokens))
    if record is not None:
        kept.unpin(record)
    return record


class StoreBesideItsModel(RuleBasedStateMachine):
    """Random puts, pins, unpins and clears; `held` is the plain list of what should be there, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.store = store()
        self.held: list[tuple[int, int, Record]] = []  # key, tokens, record
        self.pinned: list[Record] = []
        self.evicted = self.refused = 0

    def find(self, key: int) -> tuple[int, int, Record] | None:
        return next((one for one in self.held if one[0] == key), None)

    def touch(self, one: tuple[int, int, Record]) -> None:
        self.held.remove(one)
        self.held.append(one)

    @rule(key=st.integers(0, 6), tokens=st.integers(1, 12))
    def put(self, key: int, tokens: int) -> None:
        there = self.find(key)
        record = self.store.put((key,), cache(tokens))
        if there is not None:
            assert record is there[2]
            self.touch(there)
        else:
            stays = [one for one in self.held if one[2] in self.pinned]
            fits = sum(one[1] for one in stays) + tokens <= 10 and len(stays) < 4
            assert (record is not None) == fits
            self.refused += not fits
            if record is None:
                return
            while sum(one[1] for one in self.held) + tokens > 10 or len(self.held) >= 4:
                self.held.remove(next(one for one in self.held if one[2] not in self.pinned))
                self.evicted += 1
            self.held.append((key, tokens, record))
        assert record is not None
        self.pinned.append(record)

    @rule(key=st.integers(0, 6))
    def pin(self, key: int) -> None:
        record, there = self.store.pin((key,)), self.find(key)
        assert record is (there[2] if there else None)
        if there is not None:
            self.touch(there)
            self.pinned.append(there[2])

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.store.unpin(self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1))))

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.held = []

    @invariant()
    def agrees(self) -> None:
        self.store.check()
        info = self.store.describe()
        assert (info.records, info.bytes) == (len(self.held), sum(one[1] for one in self.held) * UNIT)
        assert (info.evicted, info.refused) == (self.evicted, self.refused)
        assert info.bytes <= info.budget_bytes


TestStoreBesideItsModel = StoreBesideItsModel.TestCase
TestStoreBesideItsModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_pin_asks_for_exactly_the_tokens() -> None:
    """A shorter or a longer prefix never serves, nor does another reader's."""
    kept = store()
    kept.put((1, 2, 3), cache(3))
    assert kept.pin((1, 2)) is None
    assert kept.pin((1, 2, 3, 4)) is None
    assert kept.pin((1, 2, 3)) is not None
    info = kept.describe()
    assert (info.hits, info.misses, info.stored) == (1, 2, 1)


def test_put_of_a_prefix_that_is_there_gives_the_one_there() -> None:
    """Two jobs that computed one state at once end with one record, pinned for each."""
    kept = store()
    first, second = kept.put((1,), cache(3)), kept.put((1,), cache(3))
    assert first is second
    assert first is not None
    assert first.pins == 2
    assert kept.describe().stored == 1


def test_pinned_records_are_not_evicted() -> None:
    """A record in use stays, and a newcomer that would need its room is refused with nothing evicted."""
    kept = store(tokens=10)
    used = kept.put((1,), cache(6))
    keep(kept, 2, 3)
    assert kept.put((3,), cache(7)) is None
    assert kept.describe().records == 2
    assert kept.describe().refused == 1
    assert keep(kept, 4, 4) is not None
    assert kept.pin((2,)) is None
    assert kept.pin((1,)) is used


@pytest.mark.parametrize("tier", ["off", "unsupported"])
def test_store_without_a_tier_keeps_nothing(tier: str) -> None:
    """Where prefixes are not kept, each put is declined and counts as no refusal."""
    kept = store(tier=tier)
    assert kept.put((1,), cache(1)) is None
    assert kept.pin((1,)) is None
    assert (kept.tier, kept.describe().records, kept.describe().refused) == (tier, 0, 0)


def test_eviction_frees_the_memory() -> None:
    """What is evicted or cleared is memory that MLX gets back."""
    kept = PrefixStore(tier="exact", salt="s", max_records=2, budget_bytes=1 << 30)
    before = mx.get_active_memory()
    sizes = []
    for key in range(5):
        keep(kept, key, 4000)
        sizes.append(mx.get_active_memory() - before)
    assert sizes[0] >= 4000 * UNIT
    assert sizes[1] == sizes[2] == sizes[3] == sizes[4] == 2 * sizes[0]
    kept.clear()
    assert mx.get_active_memory() == before


def test_check_finds_a_record_that_grew() -> None:
    """The walk over the store notices a cache that somebody wrote into."""
    kept = store()
    record = kept.put((1,), cache(2))
    kept.check()
    assert record is not None
    record.cache[0].update_and_fetch(mx.zeros((1, 2, 1, 16)), mx.zeros((1, 2, 1, 16)))
    with pytest.raises(AssertionError):
        kept.check()

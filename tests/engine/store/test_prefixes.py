"""The store over its shelves: what is counted and told, who reads what, memory given back, and the walk over it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from letterwise_service import metrics
from letterwise_service.engine.backend import mx
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.store.prefixes import PrefixStore
from letterwise_service.engine.store.shelf import Ids, Lease
from tests.engine.store import test_blocks, test_snapshots
from tests.engine.store.test_blocks import CHUNK, state

TIERS = ["exact", "checkpoint"]
COMPUTED: dict[str, Callable[[Ids, int], list[Any]]] = {
    "exact": lambda ids, tokens: test_blocks.computed(ids, tokens, sealed=tokens == len(ids)),
    "checkpoint": test_snapshots.computed,
}


def store(tier: str = "exact", *, chunks: int = 100, records: int = 8) -> PrefixStore:
    return PrefixStore(tier=tier, salt="s", max_records=records, budget_bytes=chunks * CHUNK)


def compute(kept: PrefixStore, lease: Lease) -> None:
    """Compute and keep what is missing of a lease's prefix."""
    for end in [*range(lease.tokens + FORWARD_TOKENS, len(lease.ids), FORWARD_TOKENS), len(lease.ids)]:
        kept.keep(lease, COMPUTED[kept.tier](lease.ids, end), end)


def read(kept: PrefixStore, ids: Ids, scales: str = "") -> int:
    """A whole job's use of the store; the tokens that it reused."""
    with kept.lease(ids, scales) as lease:
        reused = lease.tokens
        if not lease.whole:
            compute(kept, lease)
    kept.check(idle=True)
    return reused


@pytest.mark.parametrize("tier", TIERS)
def test_lookups_are_told_apart(tier: str) -> None:
    """Hits found all of it, partial hits a start, misses nothing."""
    kept = store(tier)
    assert [read(kept, state(1, 2, tail=tail)) for tail in (9, 9, 60)] == [0, 265, 256]
    info = kept.describe()
    assert (info.tier, info.hits, info.partial_hits, info.misses) == (tier, 1, 1, 1)
    assert (info.refused, info.evicted) == (0, 0)
    assert info.stored == info.records == {"exact": 4, "checkpoint": 3}[tier]
    assert 0 < info.bytes <= info.budget_bytes == 100 * CHUNK


@pytest.mark.parametrize("tier", TIERS)
def test_adapter_scales_keep_records_apart(tier: str) -> None:
    """A prefix computed with other adapter scales never serves, nor is it waited for."""
    kept = store(tier)
    read(kept, state(1, 2), "style=1")
    assert read(kept, state(1, 2)) == 0
    assert read(kept, state(1, 2), "style=0.5") == 0
    assert read(kept, state(1, 2), "style=1") == 256
    with kept.lease(state(7), "style=1"):
        assert kept.being_read(state(7), "style=1")
        assert not kept.being_read(state(7))


@pytest.mark.parametrize("tier", TIERS)
def test_prefix_is_being_read_until_it_is_whole(tier: str) -> None:
    """From the lease to the last token, or to the reader's end if that comes first; never for a kept one."""
    kept, ids = store(tier), state(1, 2, tail=5)
    assert not kept.being_read(ids)
    with kept.lease(ids) as lease:
        kept.keep(lease, COMPUTED[tier](ids, 128), 128)
        assert kept.being_read(ids)
        assert not kept.being_read(state(1, 2))
        compute(kept, lease)
        assert lease.whole
        assert not kept.being_read(ids)
        with kept.lease(ids) as other:
            assert other.whole
            assert not kept.being_read(ids)
    with kept.lease(state(3)):
        assert kept.being_read(state(3))
    assert not kept.being_read(state(3))
    kept.check(idle=True)


@pytest.mark.parametrize("tier", TIERS)
def test_refused_prefix_is_not_waited_for(tier: str) -> None:
    """Once its reader cannot keep it, others read it by themselves; an end of one reader frees no other's claim."""
    kept, ids = store(tier, chunks=1), state(1, 2)
    with ExitStack() as jobs:
        first = jobs.enter_context(kept.lease(ids))
        assert kept.being_read(ids)
        compute(kept, first)
        assert first.refused
        assert not kept.being_read(ids)
        second = ExitStack()
        second.enter_context(kept.lease(ids))
        jobs.pop_all().close()
        assert kept.being_read(ids)
        kept.check()
        second.close()
    assert kept.describe().refused == 1
    kept.check(idle=True)


@pytest.mark.parametrize("tier", ["off", "unsupported"])
def test_store_without_a_tier_keeps_nothing(tier: str) -> None:
    """Where prefixes are not kept nobody waits, nothing is refused, and every lookup is a miss."""
    kept = store(tier)
    with kept.lease(state(1)) as lease, kept.lease(state(1)) as other:
        assert not kept.being_read(state(1))
        kept.keep(lease, COMPUTED["exact"](state(1), 128), 128)
        kept.leave(other, COMPUTED["exact"](state(1), 128), 128)
        assert kept.cache(lease) is None
        assert not lease.whole
        kept.check()
    kept.clear()
    kept.check(idle=True)
    info = kept.describe()
    assert (info.tier, info.records, info.refused, info.misses) == (tier, 0, 0, 2)


@pytest.mark.parametrize("tier", TIERS)
def test_eviction_frees_the_memory(tier: str) -> None:
    """MLX holds what the store says it holds, to the page, and gets back all that is evicted or cleared."""
    tokens, page = 40 * FORWARD_TOKENS, 16_384
    kept = store(tier, chunks=100)
    gc.collect()  # other tests' models
    before = mx.get_active_memory()
    for chunk in range(6):
        read(kept, state(*[chunk + 10] * 40))
        info = kept.describe()
        assert info.bytes <= info.budget_bytes
        held = mx.get_active_memory() - before
        assert abs(held - info.bytes) <= 2 * page * (info.records + 8)
    assert kept.describe().evicted > 0
    assert kept.describe().bytes >= tokens * test_blocks.UNIT
    kept.clear()
    assert mx.get_active_memory() == before
    assert kept.describe().bytes == 0


@pytest.mark.parametrize("tier", TIERS)
def test_clear_keeps_what_a_job_uses(tier: str) -> None:
    """The state of a running job stays; the rest goes."""
    kept = store(tier)
    read(kept, state(1, 2))
    read(kept, state(3, 4))
    with kept.lease(state(1, 2)) as lease:
        kept.clear()
        kept.check()
        assert lease.whole
        assert kept.cache(lease) is not None
    assert read(kept, state(1, 2)) == 256
    assert read(kept, state(3, 4)) == 0


def test_check_finds_a_lease_that_is_out() -> None:
    """An idle store holds nothing for anybody."""
    kept = store()
    with kept.lease(state(1)):
        kept.check()
        with pytest.raises(AssertionError, match="holds something"):
            kept.check(idle=True)


@pytest.mark.parametrize("tier", TIERS)
def test_metrics_follow_the_store(tier: str) -> None:
    """Counters and gauges by tier move with what the store tells."""

    def value(name: str) -> float:
        return metrics.REGISTRY.get_sample_value(f"letterwise_prefix_store_{name}", {"tier": tier}) or 0.0

    names = ("hits", "partial_hits", "misses", "stored", "refused", "evicted")
    before = {name: value(f"{name}_total") for name in names}
    kept = store(tier, chunks=4)
    for ids in (state(1, 2), state(1, 2), state(1, 2, tail=3), state(3, 4, 5), state(*range(10, 20))):
        read(kept, ids)
    info = kept.describe()
    for name in names:
        assert value(f"{name}_total") - before[name] == getattr(info, name) > 0
    assert (value("records"), value("bytes")) == (info.records, info.bytes)

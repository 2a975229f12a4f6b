"""Kept, partly kept and cold are the same bits: on plain attention, recurrent layers and windows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from letterwise_service.engine.events import Diagnostics, PrefixProgress
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.steps import Served
from letterwise_service.engine.store.prefixes import PrefixStore
from tests.engine.conftest import found_reader
from tests.engine.decisions import LATE, WHICH, finish, make, service, unpinned

TIERS = {"llama": "exact", "wide": "exact", "qwen3_5": "checkpoint", "gemma3_text": "checkpoint"}
ReaderOf = Callable[[str], Reader]


@dataclass(frozen=True)
class Step:
    """How the next state comes from one before: its first `cut` hundredths, and `added` characters of its own."""

    of: int
    cut: int
    added: int


STEPS = st.builds(
    Step,
    of=st.integers(0, 9),
    cut=st.sampled_from([100, 100, 100, 70, 40, 0]),
    added=st.sampled_from([0, 1, 20, 60, 128, 200]),
)


def grown(steps: list[Step]) -> list[str]:
    """States that grow, diverge, and come back."""
    states = [letters(330, 0)]
    for i, step in enumerate(steps, 1):
        before = states[step.of % len(states)]
        states.append(before[: len(before) * step.cut // 100][:700] + letters(step.added, i))
    return states


def letters(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefgh ") for _ in range(count))


@cache
def cold(architecture: str, state: str) -> Any:
    """The outcomes with nothing kept, computed once for each state."""
    return decided(service(found_reader(architecture), tier="off"), state)[0]


def decided(served: Served, state: str) -> tuple[Any, Diagnostics]:
    job, heard = make(LATE, WHICH, state=state, seconds=600.0)
    finish(job, served)
    told = heard.completed().diagnostics
    progress = [event for event in heard.events if isinstance(event, PrefixProgress)]
    assert progress[0].done_tokens == told.prefix.reused_tokens
    assert progress[-1].done_tokens == told.prefix.tokens
    assert {event.reused_tokens for event in progress} == {told.prefix.reused_tokens}
    return heard.outcomes(), told


@pytest.mark.parametrize("architecture", TIERS)
def test_kept_and_partly_kept_states_have_the_cold_bits(reader_of: ReaderOf, architecture: str) -> None:
    """Whatever was asked before, with room for all of it or for little, a state's answers are those of a first one."""
    reader, tier = reader_of(architecture), TIERS[architecture]
    reused: set[str] = set()
    examples = 8 if tier == "exact" else 4

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(steps=st.lists(STEPS, min_size=4, max_size=7), small=st.booleans())
    def holds(steps: list[Step], small: bool) -> None:
        served = bounded(service(reader, tier=tier), small=small)
        for state in grown(steps):
            outcomes, told = decided(served, state)
            assert outcomes == cold(architecture, state)
            reused.add(kind(told))
            assert served.store.describe().bytes <= served.store.describe().budget_bytes
            assert unpinned(served)

    holds()
    assert reused == {"none", "some", "all"}


def bounded(served: Served, *, small: bool) -> Served:
    """With room for everything, or for about two of the states."""
    if not small:
        return served
    decided(served, letters(400, 1))
    room = served.store.describe().bytes
    return replace(served, store=PrefixStore(tier=served.store.tier, salt="test", max_records=3, budget_bytes=2 * room))


def kind(told: Diagnostics) -> str:
    tokens, reused = told.prefix.tokens, told.prefix.reused_tokens
    assert reused == tokens or reused % FORWARD_TOKENS == 0
    return "all" if reused == tokens else "some" if reused else "none"


@pytest.mark.parametrize("architecture", TIERS)
def test_growing_conversation_computes_each_chunk_once(reader_of: ReaderOf, architecture: str) -> None:
    """Twelve states, each the last and sixty tokens more: each begins at the last one's last boundary."""
    served = service(reader_of(architecture), tier=TIERS[architecture])
    text, last = "", 0
    for i in range(12):
        text += letters(60, i)
        _, told = decided(served, text)
        assert told.prefix.reused_tokens == last // FORWARD_TOKENS * FORWARD_TOKENS
        assert told.prefix.stored
        last = told.prefix.tokens
    assert unpinned(served)


@pytest.mark.parametrize("architecture", TIERS)
def test_states_with_one_beginning_share_it(reader_of: ReaderOf, architecture: str) -> None:
    """From the second on (plain attention) or the third (checkpoints), a common start is not computed again."""
    served = service(reader_of(architecture), tier=TIERS[architecture])
    start = letters(400, 0)
    reused = [decided(served, start + letters(150, i))[1].prefix.reused_tokens for i in (1, 2, 3)]
    assert reused == ([0, 384, 384] if TIERS[architecture] == "exact" else [0, 0, 384])


@pytest.mark.parametrize("architecture", TIERS)
def test_state_stopped_in_the_middle_goes_on_with_the_same_bits(reader_of: ReaderOf, architecture: str) -> None:
    """What a cancelled job had read serves the next one, bit for bit."""
    served, state = service(reader_of(architecture), tier=TIERS[architecture]), letters(600, 5)
    job, _ = make(LATE, WHICH, state=state)
    job.start(served)
    assert not job.advance()
    job.cancel()
    assert job.advance()
    outcomes, told = decided(served, state)
    assert told.prefix.reused_tokens == 2 * FORWARD_TOKENS
    assert outcomes == cold(architecture, state)
    assert unpinned(served)

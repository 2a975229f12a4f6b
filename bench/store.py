"""What keeping prefixes is worth, and that its bounds hold: `python -m bench store`.

One claim, or all with smaller sizes, printed and not kept: `python -m bench.store [NAME …] [--quick]`.

Each claim is a function that gives the numbers of its table. The times are those of the embedded model on one engine,
cold and kept in the same run, as ratios; the long runs are on tiny random models, for they are about the store and not
about the forwards.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from letterwise_service.engine.events import Completed
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option

from .claims import Bench, Claim, Numbers, Waiting, embedded, serving
from .leftovers import arrays_bytes, resident_bytes

LATE = Noul("late", "Does the first customer complain about a late delivery?")
WHICH = Choice("which", "Which team has the most to do?", tuple(Option(f"team {i}") for i in range(5)))
_WORDS = (
    "the",
    "lamp",
    "came",
    "late",
    "and",
    "its",
    "box",
    "was",
    "open",
    "so",
    "she",
    "wrote",
    "about",
    "a",
    "refund",
)


def ask(engine: Engine, state: str, *questions: Any) -> Completed:
    """One decision, or the state alone where there are no questions."""
    waiting = Waiting()
    permit = engine.admit(DecisionRequest(state, questions)) if questions else engine.admit_state(state)
    engine.submit(permit, waiting)
    return waiting.completed()


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def kept_over_cold(engine: Engine, tokens: int, repeats: int) -> Numbers:
    """One question on a new state of about `tokens` tokens, then on the same state again: medians, and their ratio."""
    cold, kept, lookup = [], [], []
    for seed in range(repeats):
        state = words(int(tokens / 1.02), seed=1000 * tokens + seed)
        first = ask(engine, state, LATE).diagnostics
        assert first.prefix.reused_tokens < FORWARD_TOKENS, "the state was not new"
        cold.append(first.total_seconds - first.queue_seconds)
        for _ in range(3):
            again = ask(engine, state, LATE).diagnostics
            assert again.prefix.reused_tokens == again.prefix.tokens, "the state was not kept"
            kept.append(again.total_seconds - again.queue_seconds)
            lookup.append(again.prefix_seconds)
    return {
        "tokens": first.prefix.tokens,
        "cold_seconds": statistics.median(cold),
        "kept_seconds": statistics.median(kept),
        "lookup_milliseconds": 1000 * statistics.median(lookup),
        "kept_over_cold": statistics.median(kept) / statistics.median(cold),
    }


def growing_tokens(engine: Engine, states: int, first_tokens: int = 700) -> Numbers:
    """Prewarms of states that are each the last and sixty tokens more: prefix tokens computed against those needed.

    Needed: the tokens of the last state, and at each step the last one's partial chunk again.
    """
    text = words(int(first_tokens / 1.02), seed=7)
    computed, all_tokens, partial, tokens = 0, 0, 0, 0
    for i in range(states):
        text += " " + words(59, seed=100 + i)
        told = ask(engine, text).diagnostics
        partial += tokens % FORWARD_TOKENS
        tokens = told.prefix.tokens
        computed += told.computed_tokens
        all_tokens += tokens
    return {
        "states": states,
        "last_tokens": tokens,
        "computed_tokens": computed,
        "growing_tokens_ratio": computed / (tokens + partial),
        "without_reuse_ratio": all_tokens / (tokens + partial),
    }


def many_callers(engine: Engine, callers: int, tokens: int) -> Numbers:
    """Callers that all ask about one new state before any is answered: how many times over its prefix is computed."""
    state, waiting = words(int(tokens / 1.02), seed=99), [Waiting() for _ in range(callers)]
    permits = [engine.admit(DecisionRequest(state, (LATE,))) for _ in waiting]
    for permit, one in zip(permits, waiting, strict=True):
        engine.submit(permit, one)
    told = [one.completed().diagnostics for one in waiting]
    prefix = told[0].prefix.tokens
    tails = sum(one.prompt_tokens - prefix for one in told)
    assert all(one.answers == waiting[0].answers for one in waiting)
    return {
        "callers": callers,
        "prefix_tokens": prefix,
        "times_computed": (sum(one.computed_tokens for one in told) - tails) / prefix,
    }


class Bounds:
    """Watches a store at every event of every job, which is at every step of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.looks = self.most_bytes = self.most_records = self.broken = 0

    def look(self) -> None:
        info = self._engine.describe_store()
        self.looks += 1
        self.most_bytes = max(self.most_bytes, info.bytes)
        self.most_records = max(self.most_records, info.records)
        self.broken += info.bytes > info.budget_bytes


def long_run(architecture: str, decisions: int, states: int, budget_bytes: int) -> Numbers:
    """Decisions on states drawn at random, some far more often than others, eight in flight.

    The bound on bytes is looked at in every step, resident memory after the first fifth, and each hundredth answer is
    compared with a cold one.
    """
    with tempfile.TemporaryDirectory() as folder, serving_tiny(Path(folder), architecture, budget_bytes) as engines:
        engine, cold = engines
        bounds, rng = Bounds(engine), random.Random(5)
        texts = [words(40, seed=i % 50) + " " + words(rng.randrange(10, 80), seed=1000 + i) for i in range(states)]
        resident: list[int] = []
        active: list[int] = []
        compared = wrong = done = 0
        while done < decisions:
            chosen = [texts[min(int(rng.expovariate(4 / states)), states - 1)] for _ in range(8)]
            flight = [Waiting(bounds.look) for _ in chosen]
            for text, one in zip(chosen, flight, strict=True):
                engine.submit(engine.admit(DecisionRequest(text, (LATE, WHICH))), one)
            for one in flight:
                one.completed()
            if done // 100 != (done + len(flight)) // 100:
                compared += 1
                wrong += flight[-1].answers != answers(cold, chosen[-1])
                resident.append(resident_bytes())
                active.append(arrays_bytes())
            done += len(flight)
        info = engine.check_store()
    return {
        "decisions": done,
        "looks": bounds.looks,
        "bound_broken": bounds.broken,
        "most_bytes_share": bounds.most_bytes / budget_bytes,
        "records": info.records,
        "hits": info.hits,
        "partial_hits": info.partial_hits,
        "misses": info.misses,
        "evicted": info.evicted,
        "compared": compared,
        "wrong": wrong,
        "resident_megabytes": resident[-1] / 2**20,
        "resident_growth": growth(resident),
        "arrays_growth": growth(active),
    }


@contextmanager
def serving_tiny(folder: Path, architecture: str, budget_bytes: int) -> Iterator[tuple[Engine, Engine]]:
    """A tiny model served with a small store, and the same with none: the judge."""
    from tests.tiny import tiny_folder

    model = str(tiny_folder(folder / "tiny", architecture, max_position_embeddings=4096))
    with (
        serving(model=model, prefix_store_bytes=budget_bytes, check_store_when_idle=True) as engine,
        serving(model=model, prefix_store=False) as cold,
    ):
        yield engine, cold


def answers(engine: Engine, state: str) -> dict[str, Any]:
    waiting = Waiting()
    engine.submit(engine.admit(DecisionRequest(state, (LATE, WHICH))), waiting)
    waiting.completed()
    return waiting.answers


def growth(samples: list[int]) -> float:
    """The last third over the first one, once the first fifth is past: MLX keeps freed buffers, up to its limit."""
    settled = samples[len(samples) // 5 :] or samples
    third = max(1, len(settled) // 3)
    return statistics.median(settled[-third:]) / statistics.median(settled[:third])


CLAIMS: dict[str, Claim] = {
    "kept_700": (partial(embedded, kept_over_cold, 700, 5), partial(embedded, kept_over_cold, 700, 2)),
    "kept_5000": (partial(embedded, kept_over_cold, 5000, 3), partial(embedded, kept_over_cold, 5000, 1)),
    "growing": (partial(embedded, growing_tokens, 40), partial(embedded, growing_tokens, 12)),
    "callers": (partial(embedded, many_callers, 200, 700), partial(embedded, many_callers, 200, 150)),
    **{
        f"long_{architecture}": (
            partial(long_run, architecture, decisions, 500, 3 * 2**20),
            partial(long_run, architecture, decisions // 5, 100, 3 * 2**20),
        )
        for architecture, decisions in (("llama", 10_000), ("gemma3_text", 2000), ("qwen3_5", 1000))
    },
}
# key → (claim, its number)
KEYS = {
    "kept_over_cold_1": ("kept_700", "kept_over_cold"),
    "kept_over_cold_1_5000": ("kept_5000", "kept_over_cold"),
    "prefix_lookup_milliseconds": ("kept_700", "lookup_milliseconds"),
    "growing_tokens_ratio": ("growing", "growing_tokens_ratio"),
    "callers_200_times_computed": ("callers", "times_computed"),
    **{
        f"store_{key}_{claim}": (claim, number)
        for claim in CLAIMS
        if claim.startswith("long_")
        for key, number in (("bound_broken", "bound_broken"), ("wrong", "wrong"), ("resident", "resident_growth"))
    },
}


BENCH = Bench("store", CLAIMS, KEYS)
run = BENCH.run

if __name__ == "__main__":
    BENCH.main()

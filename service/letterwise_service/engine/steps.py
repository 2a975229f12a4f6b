"""The steps of one job: its state is read, or was kept, then its questions, and what that took is accounted for.

Engine thread. The steps are a generator that yields after each step of the reader, between which a job may be stopped.
Knows nothing of queues, deadlines or how a job ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from .. import metrics
from ..method.answers import Skipped
from ..method.decision import Decision, Outcome, Pass, Reading
from ..method.prompt import PROMPT_FORMAT_VERSION
from ..method.request import Adapter
from .budgets import Ids, Permit, tail_ids
from .events import Accepted, Answered, Completed, Diagnostics, Listener, PrefixInfo, PrefixProgress, WasSkipped
from .models.adapters import Adapters
from .prompts.tokens import PromptTokens
from .reading.reader import Manner, Reader, TailScores, Work
from .reading.views import Cache
from .steptime import StepTime
from .store.prefixes import PrefixStore
from .store.shelf import Lease

# Characters of prompts after which a job that tokenises on the engine thread has had its turn.
_TOKENISED_A_TURN = 50_000


@dataclass(frozen=True)
class Served:
    """The model as it is served: everything that a job's steps use. Engine thread.

    reader: reads with the model alone. manners: how it is read with each adapter, by name.
    """

    name: str
    style: str
    reader: Reader
    tokens: PromptTokens
    store: PrefixStore
    adapters: Adapters = field(default_factory=Adapters)
    manners: Mapping[str, Manner] = field(default_factory=dict)
    step_time: StepTime = field(default_factory=StepTime)

    def reader_of(self, adapter: Adapter | None) -> Reader:
        """The reader of the model with an adapter, at its scale."""
        if adapter is None:
            return self.reader
        return self.reader.publishing(self.manners[adapter.name], partial(self.adapters.published, (adapter,)))


@dataclass
class _Metered(Work):
    """A job's work, told to the metrics as it is done; each step's time is learned."""

    step_time: StepTime = field(default_factory=StepTime)

    def ran(self, kind: str, seconds: float, tokens: int, padding: int) -> None:
        super().ran(kind, seconds, tokens, padding)
        metrics.forward_ran(kind, seconds, computed_tokens=tokens, padded_tokens=padding)

    def stepped(self, seconds: float) -> None:
        self.step_time.measured(seconds)


class Steps:
    """The steps of one job, and the account that becomes its diagnostics."""

    def __init__(self, permit: Permit, served: Served, tell: Listener, *, queue_seconds: float) -> None:
        self._permit = permit
        self._served = served
        self._reader = served.reader_of(permit.adapter)
        self._tell = tell
        self._queue_seconds = queue_seconds
        self._work = _Metered(step_time=served.step_time)
        self._scales = served.adapters.salt(permit.adapter)
        self._kept: str | None = None
        self._cache: Cache | None = None
        self._stages = 0
        self._skipped: list[Skipped] = []
        self._passes = 0
        self._prompt_tokens = len(permit.prefix) if permit.request is None else 0

    @property
    def waits(self) -> bool:
        """Whether another running job reads the prefix that this one has not asked for yet."""
        return self._kept is None and self._served.store.being_read(self._permit.prefix, self._scales)

    @property
    def found(self) -> tuple[str, str]:
        """The store's tier, and how much of the prefix was kept, as the metrics have it."""
        return self._served.store.tier, self._kept or metrics.UNKNOWN

    def let_go(self) -> None:
        """Free what the job has read with, once its caller has been told: the system takes milliseconds for it."""
        self._cache = None

    def run(self) -> Generator[None, None, Completed]:
        started = time.monotonic()
        self._tell(Accepted(self._permit.passes, self._permit.prompt_tokens))
        ids, store = self._permit.prefix, self._served.store
        while self.waits:
            yield
        with store.lease(ids, self._scales) as lease:
            reused = lease.tokens
            self._kept = metrics.KEPT if lease.whole else metrics.PARTIAL if reused else metrics.COLD
            metrics.tokens_reused(reused)
            cache = self._cache = yield from self._prefix(lease)
            info = PrefixInfo(len(ids), reused, stored=lease.whole, tier=store.tier)
            read = time.monotonic()
            if self._permit.request is not None:
                decision = Decision(self._permit.request, style=self._served.style)
                self._stages = decision.stages
                yield from self._decide(decision, cache)
        return Completed(self._served.name, self._diagnostics(info, started, read))

    def _prefix(self, lease: Lease) -> Generator[None, None, Cache]:
        """The whole prefix's cache: what is kept of it, and the rest computed, kept as it comes."""
        store, reader, total = self._served.store, self._reader, len(lease.ids)
        cache = store.cache(lease) or reader.new_cache()
        done = reused = lease.tokens
        self._tell(PrefixProgress(done, total, reused))
        for computed in reader.extend(lease.ids, cache, done, self._work, stops=lease.stops):
            done += computed
            if done == total:
                reader.sealed(cache)
            store.keep(lease, cache, done)
            self._tell(PrefixProgress(done, total, reused))
            if done == total and self._permit.request is None:
                break  # nothing is left to wait a turn for
            try:
                yield
            except GeneratorExit:  # stopped between two steps, the cache being whole up to here
                store.leave(lease, cache, done)
                raise
        return reader.sealed(cache)

    def _decide(self, decision: Decision, cache: Cache) -> Generator[None, None, None]:
        self._report(decision.open())
        while passes := decision.ready():
            tails = yield from self._tails(passes)
            self._passes += len(passes)
            self._prompt_tokens += sum(len(self._permit.prefix) + len(tail) for tail in tails)
            for scores in self._reader.read(self._permit.prefix, cache, tails, self._work):
                for one in scores:
                    self._report(decision.take(passes[one.index], _reading(passes[one.index], one)))
                if decision.finished:
                    return
                yield

    def _tails(self, passes: Sequence[Pass]) -> Generator[None, None, list[Ids]]:
        """The passes' tails. Those not known at admission are tokenised a few a turn: others wait meanwhile."""
        tails, tokenised = [], 0
        for one in passes:
            tokenised += 0 if one.text in self._permit.tails else len(one.text)
            tails.append(tail_ids(self._permit, self._served.tokens, one.text))
            if tokenised >= _TOKENISED_A_TURN:
                tokenised = 0
                yield
        return tails

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Skipped):
                self._skipped.append(outcome)
                self._tell(WasSkipped(outcome))
            else:
                metrics.answered(outcome.letter_mass)
                self._tell(Answered(outcome))

    def _diagnostics(self, prefix: PrefixInfo, started: float, read: float) -> Diagnostics:
        request, now = self._permit.request, time.monotonic()
        return Diagnostics(
            path=self._reader.manner.head.path,
            prompt_style=self._served.style,
            prompt_format_version=PROMPT_FORMAT_VERSION,
            stages=self._stages,
            skipped=tuple(self._skipped),
            orderings=request.samples if request else 0,
            prefix=prefix,
            passes=self._passes,
            forwards=self._work.forwards,
            prompt_tokens=self._prompt_tokens,
            computed_tokens=self._work.computed_tokens,
            padded_tokens=self._work.padded_tokens,
            neutralized_tokens=self._permit.neutralized,
            queue_seconds=self._queue_seconds,
            prefix_seconds=read - started,
            tails_seconds=now - read,
            total_seconds=self._queue_seconds + now - started,
            ignored=request.ignored if request else (),
        )


def _reading(one: Pass, scores: TailScores) -> Reading:
    listed = scores.letters[: one.letters]
    if not math.isfinite(scores.log_total):
        return Reading(listed, math.nan)
    return Reading(listed, min(1.0, sum(math.exp(score - scores.log_total) for score in listed)))

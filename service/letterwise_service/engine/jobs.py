"""A job: one decision, or one state to keep, as steps that the engine thread takes between other work.

`Job` is shared between threads: its stop event is set from any, everything else is the engine thread's. The steps are
a generator that yields after each step of the reader; between two steps a job may be stopped, and then runs no more.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ..errors import Cancelled, DeadlineExceeded, LetterwiseError
from ..method.answers import Skipped
from ..method.decision import Decision, Outcome, Pass, Reading
from ..method.prompt import PROMPT_FORMAT_VERSION
from .budgets import Ids, Permit, tail_ids
from .events import (
    Accepted,
    Answered,
    Completed,
    Diagnostics,
    Event,
    Failed,
    Listener,
    PrefixInfo,
    PrefixProgress,
    WasSkipped,
)
from .prefixes import PrefixStore
from .reader import Reader, TailScores, Work
from .shelf import Lease
from .tokens import PromptTokens
from .views import Cache

_log = logging.getLogger(__name__)
_numbers = count(1)
# Prompts that a job may tokenise on the engine thread in one turn.
_TOKENISED_A_TURN = 8


@dataclass(frozen=True)
class Served:
    """The model as it is served: everything that a job's steps use. Engine thread."""

    name: str
    style: str
    reader: Reader
    tokens: PromptTokens
    store: PrefixStore


@dataclass(eq=False)
class Job:
    """An admitted request on its way; `deadline_seconds` runs from when it leaves the queue."""

    permit: Permit
    listener: Listener
    deadline_seconds: float
    caller_deadline: float | None = None  # time.monotonic() at which the caller stops waiting
    submitted: float = field(default_factory=time.monotonic)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = 0.0  # time.monotonic() at which it left the queue
    completed: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _steps: Generator[None, None, Completed] | None = None
    _deadline: float = float("inf")

    def cancel(self) -> None:
        """Stop before the next forward. Any thread, any number of times."""
        self._stop.set()

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more. Any thread."""
        return self._stop.is_set() or (self.caller_deadline is not None and time.monotonic() > self.caller_deadline)

    def start(self, served: Served) -> None:
        """Leave the queue: from now on the deadline runs."""
        self.started = time.monotonic()
        self._deadline = min(self.started + self.deadline_seconds, self.caller_deadline or float("inf"))
        self._steps = _Steps(self.permit, served, self.tell, queue_seconds=self.started - self.submitted).run()

    def advance(self) -> bool:
        """Take one step; True when the job has ended, well or not, and its listener knows."""
        assert self._steps is not None
        try:
            self._check()
            next(self._steps)
            return False
        except StopIteration as end:
            self.completed = True
            self.tell(end.value)
        except LetterwiseError as error:
            self.fail(error)
        except Exception as error:
            _log.exception("job %d failed", self.number)
            self.fail(_internal(error))
        return True

    def fail(self, error: LetterwiseError) -> None:
        """End the job with an error: what it holds is let go of first."""
        try:
            if self._steps is not None:
                self._steps.close()
        finally:
            self.tell(Failed(error))

    def tell(self, event: Event) -> None:
        try:
            self.listener(event)
        except BaseException:  # a listener's fault must not reach the engine or other jobs
            _log.exception("the listener of job %d raised", self.number)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Cancelled("the caller went away")
        if time.monotonic() > self._deadline:
            raise DeadlineExceeded("the deadline passed before every question was read")


class _Steps:
    """The steps of one job, and the account that becomes its diagnostics."""

    def __init__(self, permit: Permit, served: Served, tell: Listener, *, queue_seconds: float) -> None:
        self._permit = permit
        self._served = served
        self._tell = tell
        self._queue_seconds = queue_seconds
        self._work = Work()
        self._skipped: list[Skipped] = []
        self._passes = 0
        self._prompt_tokens = len(permit.prefix) if permit.request is None else 0

    def run(self) -> Generator[None, None, Completed]:
        started = time.monotonic()
        self._tell(Accepted(self._permit.passes, self._permit.prompt_tokens))
        ids, store = self._permit.prefix, self._served.store
        while store.being_read(ids):  # by another running job, which takes a step for each of these turns
            yield
        with store.lease(ids) as lease:
            reused = lease.tokens
            cache = yield from self._prefix(lease)
            info = PrefixInfo(len(ids), reused, stored=lease.whole, tier=store.tier)
            read = time.monotonic()
            if self._permit.request is not None:
                yield from self._decide(Decision(self._permit.request, style=self._served.style), cache)
        return Completed(self._served.name, self._diagnostics(info, started, read))

    def _prefix(self, lease: Lease) -> Generator[None, None, Cache]:
        """The whole prefix's cache: what is kept of it, and the rest computed, kept as it comes."""
        store, reader, total = self._served.store, self._served.reader, len(lease.ids)
        cache = store.cache(lease) or reader.new_cache()
        done = reused = lease.tokens
        self._tell(PrefixProgress(done, total, reused))
        for computed in reader.extend(lease.ids, cache, done, self._work, stops=lease.stops):
            done += computed
            if done == total:
                reader.sealed(cache)
            store.keep(lease, cache, done)
            self._tell(PrefixProgress(done, total, reused))
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
            for scores in self._served.reader.read(self._permit.prefix, cache, tails, self._work):
                for one in scores:
                    self._report(decision.take(passes[one.index], _reading(passes[one.index], one)))
                if decision.finished:
                    return
                yield

    def _tails(self, passes: Sequence[Pass]) -> Generator[None, None, list[Ids]]:
        """The passes' tails. Those not known at admission are tokenised a few a turn: others wait meanwhile."""
        tails, tokenised = [], 0
        for one in passes:
            tokenised += one.text not in self._permit.tails
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
                self._tell(Answered(outcome))

    def _diagnostics(self, prefix: PrefixInfo, started: float, read: float) -> Diagnostics:
        request, now = self._permit.request, time.monotonic()
        return Diagnostics(
            path=self._served.reader.manner.head.path,
            prompt_style=self._served.style,
            prompt_format_version=PROMPT_FORMAT_VERSION,
            stages=Decision(request, style=self._served.style).stages if request else 0,
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


def _internal(error: Exception) -> LetterwiseError:
    """What a caller is told of an unforeseen failure; the log has the rest."""
    wrapped = LetterwiseError("the decision failed inside the engine")
    wrapped.__cause__ = error
    return wrapped

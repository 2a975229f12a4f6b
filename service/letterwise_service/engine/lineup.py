"""Where admitted jobs wait, bounded by jobs and by tokens, and the turns that running ones take.

Shared between threads, under one lock; `turn` is the engine thread's. A few jobs run at once, each holding its prefix;
they take turns of one step, and whoever takes a place goes to the end of the line, so none waits more than its turn,
whatever the size of the others and however many come. Batch jobs have places of their own and get turns only while no
interactive job could use one. Knows nothing of what a job does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from .. import metrics
from ..errors import Draining, EngineDown, QueueFull
from ..method.request import BATCH
from .failures import retry_seconds
from .jobs import Job

# Jobs of each class that take turns; the rest wait, so that memory holds this many prefixes in use and no more.
RUNNING_JOBS = 8
RUNNING_BATCH_JOBS = 2


class _Class:
    """The jobs of one class of service, waiting and running, and how fast they have been leaving."""

    def __init__(self, max_jobs: int, max_tokens: int, places: int) -> None:
        self.waiting: deque[Job] = deque()
        self.running: deque[Job] = deque()
        self.fresh: set[Job] = set()  # those of the running that have had no turn yet
        self.tokens = 0
        self.rate = 0.0  # prompt tokens a second, smoothed
        self._max_jobs, self._max_tokens, self._places = max_jobs, max_tokens, places

    @property
    def jobs(self) -> int:
        return len(self.waiting) + len(self.running)

    def has_room(self, tokens: int) -> bool:
        """Whether a job of so many tokens may wait; one that is larger than the bound may when it is alone."""
        return self.jobs < self._max_jobs and (not self.tokens or self.tokens + tokens <= self._max_tokens)

    def seat(self) -> bool:
        """Give those that have waited longest the places that are free; whether there was one to give and to take."""
        seats = min(self._places - len(self.running), len(self.waiting))
        for _ in range(seats):
            self.take_in(self.waiting[0])
        return seats > 0

    def take_in(self, job: Job) -> None:
        """From the queue to the end of the running ones' line."""
        self.waiting.remove(job)
        self.running.append(job)
        self.fresh.add(job)

    def is_first(self, job: Job) -> bool:
        """Whether this turn is the job's first; it is no more afterwards."""
        first = job in self.fresh
        self.fresh.discard(job)
        return first

    def clear(self) -> None:
        for jobs in (self.waiting, self.running, self.fresh):
            jobs.clear()
        self.tokens = 0

    def rotate(self, stand_in: Callable[[Job], Job | None] = lambda job: None) -> Job | None:
        """The next running job that a step would help, at the end of the line from now on.

        stand_in: who takes the turn of a job that waits for the prefix that another reads; None passes it on.
        """
        for _ in range(len(self.running)):
            self.running.rotate(-1)
            job = self.running[-1]
            if (taker := stand_in(job) if job.blocked else job) is not None:
                return taker
        return None

    def remove(self, job: Job) -> None:
        self.running.remove(job)
        self.fresh.discard(job)
        self.tokens -= _size(job)
        if job.completed:
            self._learn_rate(job)

    def _learn_rate(self, job: Job) -> None:
        seconds = max(time.monotonic() - job.started, 1e-3)
        rate = _size(job) * (len(self.running) + 1) / seconds
        self.rate = rate if not self.rate else 0.8 * self.rate + 0.2 * rate


class JobQueue:
    """Interactive jobs of at most `max_jobs` and `max_tokens` prompt tokens, and batch jobs of at most half of that.

    Waiting and running ones count together. A batch job is refused, too, where both classes together would pass the
    bounds; an interactive one never for a batch job's sake.
    """

    def __init__(self, max_jobs: int, max_tokens: int) -> None:
        self._max_jobs, self._max_tokens = max_jobs, max_tokens
        self._interactive = _Class(max_jobs, max_tokens, RUNNING_JOBS)
        self._batch = _Class(max(1, max_jobs // 2), max(1, max_tokens // 2), RUNNING_BATCH_JOBS)
        self._changed = threading.Condition()
        self._nudged = False
        self._refusal: type[Draining] | type[EngineDown] | None = None

    def put(self, job: Job) -> None:
        """Raises QueueFull with a time to come back, DeadlineExceeded, Draining or EngineDown."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal("the service takes no new decisions now")
            if (overdue := job.overdue()) is not None:
                raise overdue
            if not self._has_room(job):
                raise self._full(job)
            own = self._class_of(job)
            own.waiting.append(job)
            own.tokens += _size(job)
            self._tell()

    def turn(self, *, wait: bool, batch: bool = True) -> tuple[Job, bool] | None:
        """The job whose turn it is, and whether it leaves the queue by it; None when there is none.

        batch: whether batch jobs may have it, too; one that keeps an interactive job waiting always may.
        """
        with self._changed:
            while wait and not self._jobs() and not self._nudged and self._refusal is not EngineDown:
                self._changed.wait()
            if wait:
                self._nudged = False
            job = self._gone() or self._running(batch=batch)
            return None if job is None else (job, self._class_of(job).is_first(job))

    def remove(self, job: Job) -> None:
        """The job has ended."""
        with self._changed:
            self._class_of(job).remove(job)
            self._tell()

    def refuse(self, refusal: type[Draining] | type[EngineDown]) -> None:
        """Take nothing new from now on; what is here goes on."""
        with self._changed:
            if self._refusal is not EngineDown:  # the last word
                self._refusal = refusal
            self._changed.notify_all()

    def nudge(self) -> None:
        """End a wait for a turn at once, though there may be none: its thread has something else to look to."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def empty(self) -> list[Job]:
        """Take out every job, waiting and running."""
        with self._changed:
            jobs: list[Job] = []
            for own in self._classes():
                jobs += [*own.running, *own.waiting]
                own.clear()
            self._tell()
            return jobs

    def wait_idle(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs(), timeout_seconds)

    def __len__(self) -> int:
        with self._changed:
            return self._jobs()

    def _classes(self) -> tuple[_Class, _Class]:
        return self._interactive, self._batch

    def _class_of(self, job: Job) -> _Class:
        return self._batch if job.permit.service_class == BATCH else self._interactive

    def _has_room(self, job: Job) -> bool:
        if not self._class_of(job).has_room(_size(job)):
            return False
        if self._class_of(job) is self._interactive or not (tokens := self._interactive.tokens + self._batch.tokens):
            return True
        return self._jobs() < self._max_jobs and tokens + _size(job) <= self._max_tokens

    def _gone(self) -> Job | None:
        """A job whose caller is gone, waiting or running: it has a turn at once, to end and make its place free."""
        for own in self._classes():
            if (gone := next((job for job in own.waiting if job.gone), None)) is not None:
                own.take_in(gone)
                self._tell()
                return gone
            if (gone := next((job for job in own.running if job.gone), None)) is not None:
                return gone
        return None

    def _running(self, *, batch: bool) -> Job | None:
        """The running job whose turn it is. One that waits for the prefix that a batch job reads lends it the turn."""
        self._seat(self._interactive)
        if (job := self._interactive.rotate(self._reads_for)) is not None:
            return job
        if batch:
            self._seat(self._batch)
            if (job := self._batch.rotate()) is not None:
                return job
        running = self._interactive.running or (self._batch.running if batch else ())
        return running[0] if running else None  # each waits for another, which cannot be: let it see for itself

    def _seat(self, own: _Class) -> None:
        if own.seat():
            self._tell()

    def _reads_for(self, waiting: Job) -> Job | None:
        """The batch job that reads the prefix for which an interactive one waits."""
        begun = (job for job in self._batch.running if job not in self._batch.fresh and not job.blocked)
        return next((job for job in begun if waiting.shares_prefix(job)), None)

    def _jobs(self) -> int:
        return self._interactive.jobs + self._batch.jobs

    def _tell(self) -> None:
        """There is something new to see: for who waits, and for the metrics."""
        self._changed.notify_all()
        running = len(self._interactive.running) + len(self._batch.running)
        metrics.jobs_changed(waiting=self._jobs() - running, running=running)

    def _full(self, job: Job) -> QueueFull:
        classes = self._classes() if job.permit.service_class == BATCH else (self._interactive,)
        here = f"{sum(own.jobs for own in classes)} decisions with {sum(own.tokens for own in classes)} prompt tokens"
        return QueueFull(f"{here} are waiting or running", retry_after_seconds=_retry_seconds(classes))


def _size(job: Job) -> int:
    return max(1, job.permit.prompt_tokens)


def _retry_seconds(classes: Sequence[_Class]) -> float:
    """Half of the time in which the classes' jobs will have left, as fast as they have been leaving lately."""
    rates = [own.rate for own in classes if own.rate]
    return retry_seconds(sum(own.tokens / (own.rate or min(rates)) for own in classes) / 2 if rates else 0.0)

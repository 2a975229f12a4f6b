"""Where admitted jobs wait, bounded by jobs and by tokens, and the turns that running ones take.

Shared between threads, under one lock. A few jobs run at once, each holding its prefix; they take turns of one step,
so none waits more than its turn, whatever the size of the others. Knows nothing of what a job does.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from ..errors import Draining, EngineDown, QueueFull
from .jobs import Job

# Jobs that take turns; the rest wait, so that memory holds this many prefixes in use and no more.
RUNNING_JOBS = 8
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0


class JobQueue:
    """Jobs of at most `max_jobs` and `max_tokens` prompt tokens, waiting and running together."""

    def __init__(self, max_jobs: int, max_tokens: int) -> None:
        self._max_jobs = max_jobs
        self._max_tokens = max_tokens
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: deque[Job] = deque()
        self._tokens = 0
        self._nudged = False
        self._refusal: type[Draining] | type[EngineDown] | None = None
        self._rate = 0.0  # prompt tokens a second that jobs have been leaving at, smoothed

    def put(self, job: Job) -> None:
        """Raises QueueFull with a time to come back, Draining or EngineDown."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal("the service takes no new decisions now")
            if self._jobs() >= self._max_jobs or (self._tokens and self._tokens + _size(job) > self._max_tokens):
                here = f"{self._jobs()} decisions with {self._tokens} prompt tokens"
                raise QueueFull(f"{here} are waiting or running", retry_after_seconds=self._retry_seconds())
            self._waiting.append(job)
            self._tokens += _size(job)
            self._changed.notify_all()

    def turn(self, *, wait: bool) -> tuple[Job, bool] | None:
        """The job whose turn it is, and whether it leaves the queue by it; None when there is none."""
        with self._changed:
            while wait and not self._jobs() and not self._nudged and self._refusal is not EngineDown:
                self._changed.wait()
            self._nudged = False
            if (job := self._leaving()) is not None:
                self._waiting.remove(job)
                self._running.append(job)
                return job, True
            if not self._running:
                return None
            self._running.rotate(-1)
            return self._running[-1], False

    def remove(self, job: Job) -> None:
        """The job has ended."""
        with self._changed:
            self._running.remove(job)
            self._tokens -= _size(job)
            if job.completed:
                self._learn_rate(job)
            self._changed.notify_all()

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
            jobs = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._tokens = 0
            self._changed.notify_all()
            return jobs

    def wait_idle(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs(), timeout_seconds)

    def __len__(self) -> int:
        with self._changed:
            return self._jobs()

    def _leaving(self) -> Job | None:
        """The job that leaves the queue now; one whose caller is gone does at once, to end and make its place free."""
        gone = next((job for job in self._waiting if job.gone), None)
        if gone is not None:
            return gone
        return self._waiting[0] if self._waiting and len(self._running) < RUNNING_JOBS else None

    def _jobs(self) -> int:
        return len(self._waiting) + len(self._running)

    def _learn_rate(self, job: Job) -> None:
        seconds = max(time.monotonic() - job.started, 1e-3)
        rate = _size(job) * (len(self._running) + 1) / seconds
        self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate

    def _retry_seconds(self) -> float:
        seconds = self._tokens / self._rate / 2 if self._rate else _MIN_RETRY_SECONDS
        return min(max(seconds, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)


def _size(job: Job) -> int:
    return max(1, job.permit.prompt_tokens)

"""A job: one decision, or one state to keep, from its acceptance to its end.

`Job` is shared between threads: its stop event is set from any, everything else is the engine thread's. Stop event and
deadlines are looked at before each of its steps (`steps.py`); whatever a step raises ends this job and no other.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

from .. import metrics
from ..errors import Cancelled, DeadlineExceeded, LetterwiseError
from ..method.request import BATCH
from . import failures, headroom
from .budgets import Permit
from .events import Completed, Event, Failed, Listener
from .steps import Served, Steps
from .steptime import StepTime

_log = logging.getLogger(__name__)
_numbers = count(1)


@dataclass(eq=False)
class Job:
    """An admitted request on its way; `deadline_seconds` runs from when it leaves the queue.

    A batch job's counts its own steps alone, for between them it may wait as long as interactive work comes.
    """

    permit: Permit
    listener: Listener
    deadline_seconds: float
    caller_deadline: float | None = None  # time.monotonic() at which the caller stops waiting
    step_time: StepTime = field(default_factory=StepTime)
    submitted: float = field(default_factory=time.monotonic)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = 0.0  # time.monotonic() at which it left the queue
    completed: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _account: Steps | None = None
    _steps: Generator[None, None, Completed] | None = None
    _worked_seconds: float = 0.0
    _ended: bool = False

    def cancel(self) -> None:
        """Stop before the next forward. Any thread, any number of times."""
        self._stop.set()

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more, or would in vain. Any thread."""
        return self._stop.is_set() or self.overdue() is not None

    @property
    def what(self) -> str:
        """Its word in the metrics."""
        return metrics.PREWARM if self.permit.request is None else metrics.DECISION

    @property
    def blocked(self) -> bool:
        """Whether its next step could only wait for the prefix that another job reads. Engine thread."""
        return self._account is not None and self._account.waits and not self.gone

    def shares_prefix(self, other: Job) -> bool:
        """Whether both read the same state in the same way."""
        return self.permit.adapter == other.permit.adapter and self.permit.prefix == other.permit.prefix

    def overdue(self) -> DeadlineExceeded | None:
        """The error of a job that cannot end in time: less is left than one step takes. Any thread."""
        now, step = time.monotonic(), self.step_time.seconds
        left = math.inf if self.caller_deadline is None else self.caller_deadline - now
        if left < 0 or self._own_left(now) < 0:
            return DeadlineExceeded("the deadline passed before every question was read")
        if step is not None and left < step:
            return DeadlineExceeded(f"{left:.3f} s are left and one forward takes {step:.3f} s")
        return None

    def start(self, served: Served) -> None:
        """Leave the queue: from now on the deadline runs."""
        self.started = time.monotonic()
        metrics.left_queue(self.permit.service_class, self.started - self.submitted)
        self._account = Steps(self.permit, served, self.tell, queue_seconds=self.started - self.submitted)
        self._steps = self._account.run()

    def advance(self) -> bool:
        """Take one step; True when the job has ended, well or not, and its listener knows."""
        began = time.monotonic()
        ended = self._advance()
        self._worked_seconds += time.monotonic() - began
        return ended

    def _own_left(self, now: float) -> float:
        """The seconds of the job's own deadline that are left."""
        if not self.started:
            return math.inf
        used = self._worked_seconds if self.permit.service_class == BATCH else now - self.started
        return self.deadline_seconds - used

    def _advance(self) -> bool:
        assert self._steps is not None
        try:
            self._check()
            next(self._steps)
            return False
        except StopIteration as end:
            self.completed = True
            self._end(end.value, None)
        except Exception as error:
            self._break(error)
        return True

    def fail(self, error: LetterwiseError) -> None:
        """End the job with an error, unless it has ended: what it holds is let go of first."""
        if self._ended:
            return
        try:
            if self._steps is not None:
                self._steps.close()
        except Exception:  # it holds no lease any more all the same, and its caller still waits
            _log.exception("job %d could not be let go of well", self.number)
        finally:
            self._end(Failed(error), error)

    def tell(self, event: Event) -> None:
        try:
            self.listener(event)
        except BaseException:  # a listener's fault must not reach the engine or other jobs
            _log.exception("the listener of job %d raised", self.number)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Cancelled("the caller went away")
        if (overdue := self.overdue()) is not None:
            raise overdue

    def _break(self, error: Exception) -> None:
        """End the job with what its step raised; the frames of the step, which the error holds, keep nothing alive."""
        failures.note(error, f"job {self.number}")
        traceback.clear_frames(error.__traceback__)
        self.fail(failures.told(error, "decision"))
        if headroom.refused(error):
            headroom.release()

    def _end(self, event: Completed | Failed, error: LetterwiseError | None) -> None:
        """The last event, and the count of it."""
        self._ended = True
        metrics.ended(self.what, error)
        if self.permit.request is not None:
            tier, prefix = self._account.found if self._account else (metrics.UNKNOWN, metrics.UNKNOWN)
            metrics.decision_ended(tier, prefix, error, time.monotonic() - self.submitted)
        self.tell(event)
        if self._account is not None:
            self._account.let_go()

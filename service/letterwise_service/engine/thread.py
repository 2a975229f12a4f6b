"""The engine: the one thread that owns all of MLX, from loading the model to the last forward.

Callers on other threads admit, submit and cancel; nothing else of theirs reaches the model. The thread's `_step` is
the architecture: whose turn it is, one step of that job, out with it when it has ended.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..config import EngineConfig
from ..errors import Draining, EngineDown, LetterwiseError, LoadFailed, ModelUnsuitable
from ..method.request import DecisionRequest, Json
from .budgets import Admission, Permit
from .errands import Errands
from .events import Listener, ModelInfo, StoreInfo
from .jobs import Job, Served
from .lineup import JobQueue

_log = logging.getLogger(__name__)
_THREAD_END_SECONDS = 10.0


class Engine:
    """One model, one thread. `start`, then `wait_ready`; `drain` and `close` at the end."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._queue = JobQueue(config.queue_jobs, config.queue_tokens)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._failure: LetterwiseError | None = None
        self._info: ModelInfo | None = None
        self._served: Served | None = None
        self._admission: Admission | None = None
        self._closing = False
        self._on_death: list[Callable[[], None]] = []
        self._errands = Errands()

    def start(self) -> None:
        """Spawn the thread, which loads and warms the model; returns at once."""
        atexit.register(self.close)  # a thread that is inside MLX while the interpreter goes down aborts the process
        self._thread.start()

    def wait_ready(self, timeout_seconds: float | None = None) -> ModelInfo:
        """Block until the model is warm. Raises LoadFailed, or EngineDown when it is not ready in time."""
        if not self._ready.wait(timeout_seconds):
            raise EngineDown("the model is still loading")
        return self.info

    @property
    def info(self) -> ModelInfo:
        """What is served. Raises LoadFailed or EngineDown when nothing is."""
        if self._failure is not None:
            raise self._failure
        if self._info is None:
            raise EngineDown("the model is still loading")
        return self._info

    @property
    def alive(self) -> bool:
        """Whether the thread runs; false once it has died or was closed."""
        return self._thread.is_alive() and self._failure is None

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the engine thread if it dies unexpectedly."""
        self._on_death.append(callback)

    def admit(self, request: DecisionRequest) -> Permit:
        """Any thread; tokenises, so not on an event loop. Raises TooLong, ModelUnsuitable, EngineDown."""
        return self._admitting().admit(request)

    def admit_state(self, state: Json) -> Permit:
        """The same for a state alone, to be read and kept."""
        return self._admitting().admit_state(state)

    def submit(self, permit: Permit, listener: Listener, *, deadline_seconds: float | None = None) -> Job:
        """Queue an admitted job; `deadline_seconds`: how long its caller still waits. Raises QueueFull, Draining."""
        caller = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        job = Job(permit, listener, self._config.job_deadline_seconds, caller)
        self._queue.put(job)
        return job

    def drain(self) -> None:
        """Refuse new jobs with Draining; admitted ones go on."""
        if not self._closing:
            self._queue.refuse(Draining)

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Whether every job has ended within the time."""
        return self._queue.wait_idle(timeout_seconds)

    def close(self) -> None:
        """Stop the thread before its next step; jobs that have not ended get Failed(EngineDown)."""
        self._closing = True
        self._queue.refuse(EngineDown)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
            _wait_gone(self._thread)
            atexit.unregister(self.close)

    def describe_store(self) -> StoreInfo:
        """The prefix store as it stands. Raises EngineDown before the model is ready."""
        if self._served is None:
            raise EngineDown("the model serves no decisions")
        return self._served.store.describe()

    def check_store(self) -> StoreInfo:
        """Have the store of kept prefixes walked between two steps, and get its counts.

        Any thread but the engine's own; blocks. Raises AssertionError when the store is not whole, EngineDown.
        """
        checked = self._errands.add(self._check_store)
        self._queue.nudge()
        return checked.result()

    def _check_store(self) -> StoreInfo:
        info = self.describe_store()
        assert self._served is not None
        self._served.store.check(idle=not len(self._queue))
        return info

    def _admitting(self) -> Admission:
        info = self.info
        if self._admission is None:
            raise ModelUnsuitable(f"{info.model} cannot serve letter reads: {info.problem}")
        return self._admission

    def _run(self) -> None:
        try:
            self._load()
            while not self._closing:
                self._step()
        except LetterwiseError as error:
            self._die(error, expected=isinstance(error, LoadFailed))
        except BaseException as error:
            _log.critical("the engine thread died", exc_info=True)
            self._die(_death(error, loading=self._info is None), expected=False)
        finally:
            self._end_jobs()
            self._errands.close()
            self._ready.set()
        _release_streams()

    def _load(self) -> None:
        from .warm import warm  # the first import of MLX: on this thread

        try:
            warmed = warm(self._config)
        except LetterwiseError:
            raise
        except Exception as error:  # a broken model may fail anywhere in the libraries that read it
            _log.debug("the model could not be loaded", exc_info=True)
            raise LoadFailed(f"the model could not be loaded: {type(error).__name__}: {error}") from error
        self._served, self._admission, self._info = warmed.served, warmed.admission, warmed.info
        self._ready.set()

    def _step(self) -> None:
        turn = self._queue.turn(wait=True)
        self._errands.run()
        if turn is None:
            return
        job, leaves_queue = turn
        if leaves_queue:
            assert self._served is not None
            job.start(self._served)
        if job.advance():
            self._leave(job)

    def _leave(self, job: Job) -> None:
        if self._config.check_store_when_idle and len(self._queue) == 1:  # the last one: nothing is held now
            assert self._served is not None
            self._served.store.check(idle=True)
        self._queue.remove(job)

    def _die(self, error: LetterwiseError, *, expected: bool) -> None:
        self._failure = error
        for callback in () if expected else self._on_death:
            try:
                callback()
            except Exception:  # jobs still wait to hear of it
                _log.exception("a callback on the engine's death raised")

    def _end_jobs(self) -> None:
        self._queue.refuse(EngineDown)
        for job in self._queue.empty():
            try:
                job.fail(EngineDown("the engine stopped before this decision was read"))
            except Exception:  # the other jobs' callers still wait
                _log.exception("job %d could not be ended well", job.number)


def _release_streams() -> None:
    """End the thread's streams before it ends: a process that exits while they are going down is aborted."""
    if "mlx.core" in sys.modules:  # a load may have failed before
        from .backend import mx

        mx.clear_streams()


def _death(error: BaseException, *, loading: bool) -> LetterwiseError:
    if loading:
        return LoadFailed(f"the model could not be loaded: {type(error).__name__}: {error}")
    return EngineDown("the engine has stopped")


def _wait_gone(thread: threading.Thread) -> None:
    """Wait for the end of the thread below Python's, which `join` does not before Python 3.13.

    MLX's own per-thread state lets go of Python objects there; with the interpreter gone that aborts the process.
    """
    end = time.monotonic() + _THREAD_END_SECONDS
    while _exists(thread) and time.monotonic() < end:
        time.sleep(0.001)


def _exists(thread: threading.Thread) -> bool:
    if sys.platform.startswith("linux"):
        return Path(f"/proc/self/task/{thread.native_id}").exists()
    if sys.version_info >= (3, 13) or thread.ident is None:
        return False
    try:
        signal.pthread_kill(thread.ident, 0)
    except ProcessLookupError:
        return False
    return True

"""The engine: the one thread that owns all of MLX, from loading the model to the last forward.

Callers on other threads admit, submit and cancel; nothing else of theirs reaches the model. The thread's `_step` is
the architecture: a step of chat, whose turn it is among the decisions, one step of that job, out with it when it has
ended. While somebody chats a decision's step is one forward.
"""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import metrics
from ..config import EngineConfig
from ..errors import Draining, EngineDown, LetterwiseError, LoadFailed, ModelUnsuitable, Unsupported
from ..method.chat import ChatRequest
from ..method.request import INTERACTIVE, Adapter, DecisionRequest, Json
from .budgets import Admission, Permit
from .chat.conversation import ChatAdmission, ChatPermit
from .chat.lane import ChatLane
from .chat.rows import ChatLine, ChatRow
from .errands import Errands
from .events import ChatListener, Listener, ModelInfo, StoreInfo
from .jobs import Job
from .lineup import JobQueue
from .steps import Served
from .steptime import StepTime

_log = logging.getLogger(__name__)
_THREAD_END_SECONDS = 10.0
# While somebody chats, which is interactive, batch decisions have a step for so many tokens of the chat.
_CHAT_STEPS_A_BATCH_STEP = 4


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
        self._line = ChatLine(config.chat_rows, config.chat_queue)
        self._lane: ChatLane | None = None
        self._chat_admission: ChatAdmission | None = None
        self._no_chat = ""
        self._chat_steps = 0  # since somebody began to chat
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
        with metrics.refusals(metrics.DECISION):
            return self._admitting().admit(request)

    def admit_state(self, state: Json, *, adapter: Adapter | None = None, service_class: str = INTERACTIVE) -> Permit:
        """The same for a state alone, to be read and kept."""
        with metrics.refusals(metrics.PREWARM):
            return self._admitting().admit_state(state, adapter=adapter, service_class=service_class)

    def submit(self, permit: Permit, listener: Listener, *, deadline_seconds: float | None = None) -> Job:
        """Queue an admitted job; `deadline_seconds`: how long its caller still waits.

        Raises QueueFull, DeadlineExceeded when a forward takes longer than that, Draining, EngineDown.
        """
        caller = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        step_time = StepTime() if self._served is None else self._served.step_time
        job = Job(permit, listener, self._config.job_deadline_seconds, caller, step_time)
        with metrics.refusals(job.what):
            self._queue.put(job)
        return job

    def admit_chat(self, request: ChatRequest) -> ChatPermit:
        """The same for a chat. Raises InvalidRequest, TooLong, Unsupported, EngineDown."""
        with metrics.refusals(metrics.CHAT):
            return self._admitting_chat().admit(request)

    def submit_chat(
        self, permit: ChatPermit, listener: ChatListener, *, deadline_seconds: float | None = None
    ) -> ChatRow:
        """Have an admitted chat wait for a place in the batch. Raises QueueFull, Draining, EngineDown."""
        caller = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        row = ChatRow(permit, listener, caller)
        with metrics.refusals(metrics.CHAT):
            self._admitting_chat()
            self._line.put(row)
        self._queue.nudge()
        return row

    def drain(self) -> None:
        """Refuse new jobs and chats with Draining; admitted ones go on."""
        if not self._closing:
            self._queue.refuse(Draining)
            self._line.refuse(Draining)

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Whether every job and every chat has ended within the time."""
        end = time.monotonic() + timeout_seconds
        return self._queue.wait_idle(timeout_seconds) and self._line.wait_idle(end - time.monotonic())

    def close(self) -> None:
        """Stop the thread before its next step; jobs and chats that have not ended get Failed(EngineDown)."""
        self._closing = True
        self._line.refuse(EngineDown)
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

    def _admitting_chat(self) -> ChatAdmission:
        info = self.info
        if self._chat_admission is None:
            raise Unsupported(f"{info.model} does not chat here: {self._no_chat}")
        return self._chat_admission

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
            self._end_chats()
            self._errands.close()
            self._ready.set()
        _release_streams()

    def _load(self) -> None:
        from .warm import warm  # the first import of MLX: on this thread

        try:
            warmed = warm(self._config)
        except LoadFailed:
            raise
        except Exception as error:  # a broken model may fail anywhere in the libraries that read it
            _log.debug("the model could not be loaded", exc_info=True)
            raise LoadFailed(f"the model could not be loaded: {type(error).__name__}: {error}") from error
        chat = warmed.chat
        self._lane = None if chat.served is None else ChatLane(chat.served, self._line)
        self._chat_admission, self._no_chat = chat.admission, chat.reason
        self._served, self._admission, self._info = warmed.served, warmed.admission, warmed.info
        self._ready.set()

    def _step(self) -> None:
        chatting = self._lane is not None and self._lane.step()
        self._chat_steps = self._chat_steps + 1 if chatting else 0
        batch = self._chat_steps % _CHAT_STEPS_A_BATCH_STEP == 0
        turn = self._queue.turn(wait=not chatting, batch=batch)
        self._errands.run()
        while turn is not None and self._only_left(*turn, chatting=chatting):
            turn = self._queue.turn(wait=False, batch=batch)

    def _only_left(self, job: Job, leaves_queue: bool, *, chatting: bool) -> bool:
        """Let a job have its turn; whether all that it did was to leave, so that another may have one at once."""
        assert self._served is not None
        self._served.reader.pace.forwards = 1 if chatting else self._served.reader.lanes
        gone = job.gone
        if leaves_queue:
            job.start(self._served)
        if job.advance():
            self._leave(job)
        return gone

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
            except BaseException:  # the other jobs' callers still wait
                _log.exception("job %d could not be ended well", job.number)

    def _end_chats(self) -> None:
        self._line.refuse(EngineDown)
        for row in self._line.empty():
            row.fail(EngineDown("the engine stopped before this message was complete"))
        if self._lane is not None:
            with suppress(Exception):  # what the thread died of may be the batch's
                self._lane.close()


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

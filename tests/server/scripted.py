"""An engine for the server's tests: the real thread, queue and Decision, with letter scores out of a function.

It has the interface of the service's engine and no model, so a test decides when it is ready, when it runs a
forward, and when it dies.
"""

from __future__ import annotations

import queue
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from letterwise_service import errors
from letterwise_service.config import EngineConfig
from letterwise_service.engine import events as ev
from letterwise_service.method.answers import Skipped
from letterwise_service.method.decision import Decision, Pass, Reading, bound_passes, count_passes
from letterwise_service.method.request import DecisionRequest, Json

CONTEXT_TOKENS = 4096


@dataclass(frozen=True)
class Permit:
    request: DecisionRequest | None
    tokens: int


@dataclass
class Job:
    permit: Permit
    listener: ev.Listener
    deadline_seconds: float | None
    stopping: threading.Event = field(default_factory=threading.Event)
    forwards: int = 0
    ended: bool = False

    def cancel(self) -> None:
        self.stopping.set()


def scripted_scores(text: str, letters: int) -> tuple[float, ...]:
    """Scores that depend on the prompt and the letter, and on nothing else."""
    return tuple((zlib.crc32(f"{text}|{letter}".encode()) % 1000) / 100 for letter in range(letters))


class ScriptedEngine:
    """`hold()` stops it before its next forward until `release()`; `die()` ends its thread as a crash would."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.scores: Callable[[str, int], tuple[float, ...]] = scripted_scores
        self.admit_error: Exception | None = None
        self.load_error: errors.LoadFailed | None = None
        self.jobs: list[Job] = []
        self.alive = True
        self.loaded = threading.Event()
        self.loaded.set()
        self._running = threading.Event()
        self._running.set()
        self._crash = False
        self._closing = False
        self._draining = False
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="scripted-engine", daemon=True)
        self._callbacks: list[Callable[[], None]] = []

    # What a test pulls.

    def hold(self) -> None:
        self._running.clear()

    def release(self) -> None:
        self._running.set()

    def die(self) -> None:
        self._crash = True
        self._running.set()
        self._queue.put(None)

    # What the server sees.

    @property
    def info(self) -> ev.ModelInfo:
        return ev.ModelInfo(
            model="scripted",
            architecture="script",
            path="rows",
            prompt_style="plain",
            prompt_format_version=1,
            context_tokens=CONTEXT_TOKENS,
            forward_tokens=128,
            tier="exact",
            device="cpu",
            dtype="float32",
            blas="none",
            blas_gflops=1.5,
            parameters=1,
            weights_bytes=4,
        )

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self, timeout_seconds: float | None = None) -> ev.ModelInfo:
        self.loaded.wait(timeout_seconds)
        if self.load_error is not None:
            raise self.load_error
        return self.info

    def on_death(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def admit(self, request: DecisionRequest) -> Permit:
        if self.admit_error is not None:
            raise self.admit_error
        longest = max(len(one.text) for one in bound_passes(request, style="plain"))
        if longest > CONTEXT_TOKENS:
            raise errors.TooLong("the longest prompt is too long", tokens=longest, limit_tokens=CONTEXT_TOKENS)
        return Permit(request, longest)

    def admit_state(self, state: Json) -> Permit:
        return Permit(None, len(str(state)))

    def submit(self, permit: Permit, listener: ev.Listener, *, deadline_seconds: float | None = None) -> Job:
        if not self.alive:
            raise errors.EngineDown("the engine is not running")
        if self._draining:
            raise errors.Draining("the server is going down")
        if sum(not job.ended for job in self.jobs) >= self.config.queue_jobs:
            raise errors.QueueFull("the queue is full", retry_after_seconds=1.5)
        job = Job(permit, listener, deadline_seconds)
        self.jobs.append(job)
        self._queue.put(job)
        return job

    def drain(self) -> None:
        self._draining = True

    def wait_idle(self, timeout_seconds: float) -> bool:
        end = time.monotonic() + timeout_seconds
        while any(not job.ended for job in self.jobs) and self.alive:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def close(self) -> None:
        self._closing = True
        self._running.set()
        self._queue.put(None)
        self._thread.join(2.0)

    def describe_store(self) -> ev.StoreInfo:
        return ev.StoreInfo("exact", 2, 300, 4000, hits=5, partial_hits=7, misses=6, stored=3, refused=4, evicted=1)

    # The engine thread.

    def _work(self) -> None:
        while not self._crash and (job := self._queue.get()) is not None:
            try:
                job.listener(self._run(job))
            except errors.LetterwiseError as error:
                job.listener(ev.Failed(error))
            except Exception as error:  # the job fails, the thread lives
                failure = errors.LetterwiseError(str(error))
                failure.__cause__ = error
                job.listener(ev.Failed(failure))
            except SystemExit:
                break
            finally:
                job.ended = True
        self.alive = False
        if self._crash:
            for callback in self._callbacks:
                callback()

    def _run(self, job: Job) -> ev.Completed:
        request, tokens = job.permit.request, job.permit.tokens
        passes = count_passes(request) if request else 0
        job.listener(ev.Accepted(passes, passes * tokens))
        for done in (tokens // 2, tokens):
            self._forward(job)
            job.listener(ev.PrefixProgress(done, tokens, 0))
        skipped = self._answer(job, request) if request else ()
        return ev.Completed("scripted", self._diagnostics(job, passes * tokens, skipped, request))

    def _answer(self, job: Job, request: DecisionRequest) -> tuple[Skipped, ...]:
        decision = Decision(request, style="plain")
        skipped: list[Skipped] = []
        while passes := decision.ready():
            for one in passes:
                self._forward(job)
                for outcome in decision.take(one, self._read(one)):
                    if isinstance(outcome, Skipped):
                        skipped.append(outcome)
                        job.listener(ev.WasSkipped(outcome))
                    else:
                        job.listener(ev.Answered(outcome))
        return tuple(skipped)

    def _read(self, one: Pass) -> Reading:
        return Reading(self.scores(one.text, one.letters), 0.5)

    def _forward(self, job: Job) -> None:
        while not self._running.wait(0.005) and not job.stopping.is_set():
            pass
        if self._crash:
            raise SystemExit
        if self._closing:
            raise errors.EngineDown("the engine was closed")
        if job.stopping.is_set():
            raise errors.Cancelled("the caller went away")
        job.forwards += 1

    def _diagnostics(
        self, job: Job, prompt_tokens: int, skipped: tuple[Skipped, ...], request: DecisionRequest | None
    ) -> ev.Diagnostics:
        return ev.Diagnostics(
            path="rows",
            prompt_style="plain",
            prompt_format_version=1,
            stages=Decision(request, style="plain").stages if request else 0,
            skipped=skipped,
            orderings=request.samples if request else 0,
            prefix=ev.PrefixInfo(job.permit.tokens, 0, True, "exact"),
            passes=job.forwards - 2,
            forwards=job.forwards,
            prompt_tokens=prompt_tokens,
            computed_tokens=prompt_tokens,
            padded_tokens=0,
            neutralized_tokens=0,
            queue_seconds=0.25,
            prefix_seconds=0.5,
            tails_seconds=1.0,
            total_seconds=1.75,
            ignored=request.ignored if request else (),
        )

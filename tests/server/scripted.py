"""An engine for the server's tests: the real thread, queue and Decision, with letter scores out of a function.

It has the interface of the service's engine and no model, so a test decides when it is ready, when it runs a
forward, and when it dies.
"""

from __future__ import annotations

import queue
import re
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from letterwise_service import errors
from letterwise_service.config import EngineConfig
from letterwise_service.engine import events as ev
from letterwise_service.method.answers import Skipped
from letterwise_service.method.chat import ChatRequest
from letterwise_service.method.decision import Decision, Pass, Reading, bound_passes, count_passes
from letterwise_service.method.request import INTERACTIVE, Adapter, DecisionRequest, Json

CONTEXT_TOKENS = 4096


@dataclass(frozen=True)
class Permit:
    request: DecisionRequest | None
    tokens: int
    adapter: Adapter | None = None
    service_class: str = INTERACTIVE


@dataclass(frozen=True)
class ChatPermit:
    request: ChatRequest


@dataclass
class Job:
    permit: Permit | ChatPermit
    listener: Callable[[Any], None]
    deadline_seconds: float | None
    stopping: threading.Event = field(default_factory=threading.Event)
    forwards: int = 0
    ended: bool = False

    def cancel(self) -> None:
        self.stopping.set()


def scripted_scores(text: str, letters: int) -> tuple[float, ...]:
    """Scores that depend on the prompt and the letter, and on nothing else."""
    return tuple((zlib.crc32(f"{text}|{letter}".encode()) % 1000) / 100 for letter in range(letters))


def scripted_words(request: ChatRequest) -> list[str]:
    """What a chat is answered with: the words of the last message, backwards."""
    return [f"{word} " for word in reversed(re.findall(r"\S+", request.messages[-1].content))]


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
            adapters=("tone",),
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
        return Permit(request, longest, request.adapter, request.service_class)

    def admit_state(self, state: Json, *, adapter: Adapter | None = None, service_class: str = INTERACTIVE) -> Permit:
        return Permit(None, len(str(state)), adapter, service_class)

    def admit_chat(self, request: ChatRequest) -> ChatPermit:
        if self.admit_error is not None:
            raise self.admit_error
        if not self.config.chat_rows:
            raise errors.Unsupported("scripted does not chat here: it was started with --chat-rows 0")
        return ChatPermit(request)

    def submit_chat(
        self, permit: ChatPermit, listener: ev.ChatListener, *, deadline_seconds: float | None = None
    ) -> Job:
        return self._submit(permit, listener, deadline_seconds)

    def submit(self, permit: Permit, listener: ev.Listener, *, deadline_seconds: float | None = None) -> Job:
        return self._submit(permit, listener, deadline_seconds)

    def _submit(
        self, permit: Permit | ChatPermit, listener: Callable[[Any], None], deadline_seconds: float | None
    ) -> Job:
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

    def _run(self, job: Job) -> ev.Completed | ev.ChatFinished:
        if isinstance(job.permit, ChatPermit):
            return self._chat(job, job.permit.request)
        request, tokens = job.permit.request, job.permit.tokens
        passes = count_passes(request) if request else 0
        job.listener(ev.Accepted(passes, passes * tokens))
        for done in (tokens // 2, tokens):
            self._forward(job)
            job.listener(ev.PrefixProgress(done, tokens, 0))
        skipped = self._answer(job, request) if request else ()
        return ev.Completed("scripted", self._diagnostics(job, tokens, passes * tokens, skipped, request))

    def _chat(self, job: Job, request: ChatRequest) -> ev.ChatFinished:
        words, prompt_tokens = scripted_words(request), len(request.messages)
        job.listener(ev.ChatStarted(prompt_tokens, prompt_tokens - 1))
        said = words[: request.max_tokens]
        for number, word in enumerate(said):
            self._forward(job)
            job.listener(ev.ChatText(word, ((number, -number / 3),)))
        reason = "stop" if len(said) == len(words) else "length"
        return ev.ChatFinished("scripted", reason, prompt_tokens, len(said), queue_seconds=0.25, total_seconds=1.75)

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
        self,
        job: Job,
        prefix_tokens: int,
        prompt_tokens: int,
        skipped: tuple[Skipped, ...],
        request: DecisionRequest | None,
    ) -> ev.Diagnostics:
        return ev.Diagnostics(
            path="rows",
            prompt_style="plain",
            prompt_format_version=1,
            stages=Decision(request, style="plain").stages if request else 0,
            skipped=skipped,
            orderings=request.samples if request else 0,
            prefix=ev.PrefixInfo(prefix_tokens, 0, True, "exact"),
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

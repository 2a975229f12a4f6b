"""The bridge between asyncio and the engine thread: a job's events as an async iterator, its caller's end as a cancel.

Owns the events on their way to callers. Everything here runs on the event loop, but for the listener, which the
engine thread calls and which returns at once: a slow reader fills a queue on the loop and never holds the engine.
The queue is bounded by what its job can tell: the few events of a decision, one small event for each of the
`max_tokens` of a chat. Knows nothing of protobuf.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol, TypeVar

from ..engine.events import (
    Answered,
    ChatEvent,
    ChatFinished,
    ChatListener,
    Completed,
    Event,
    Failed,
    Listener,
    ModelInfo,
    StoreInfo,
    WasSkipped,
)
from ..errors import EngineDown
from ..method.answers import Answer, Skipped
from ..method.chat import ChatRequest
from ..method.request import Adapter, DecisionRequest, Json
from . import tracing

Told = TypeVar("Told")


class Job(Protocol):
    """A decision or a chat that the engine has taken."""

    def cancel(self) -> None:
        """Stops it before its next forward; harmless once it has ended."""


class Engine(Protocol):
    """The engine as the server sees it. A permit is opaque here: it goes from an `admit` to its `submit`."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def alive(self) -> bool: ...
    def start(self) -> None: ...
    def wait_ready(self, timeout_seconds: float | None = None) -> ModelInfo: ...
    def on_death(self, callback: Callable[[], None]) -> None: ...
    def admit(self, request: DecisionRequest) -> Any: ...
    def admit_state(self, state: Json, *, adapter: Adapter | None = None, service_class: str = ...) -> Any: ...
    def admit_chat(self, request: ChatRequest) -> Any: ...
    def submit(self, permit: Any, listener: Listener, *, deadline_seconds: float | None = None) -> Job: ...
    def submit_chat(self, permit: Any, listener: ChatListener, *, deadline_seconds: float | None = None) -> Job: ...
    def drain(self) -> None: ...
    def wait_idle(self, timeout_seconds: float) -> bool: ...
    def close(self) -> None: ...
    def describe_store(self) -> StoreInfo: ...


class Bridge:
    """Submits decisions and chats to one engine and hands their events to coroutines of one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: set[asyncio.Queue[Any]] = set()

    def events(self, permit: Any, deadline_seconds: float | None) -> AsyncGenerator[Event, None]:
        """A decision's events up to Completed. A Failed is raised as its error; leaving early cancels the job."""
        return self._told(lambda listener: self._engine.submit(permit, listener, deadline_seconds=deadline_seconds))

    def chat_events(self, permit: Any, deadline_seconds: float | None) -> AsyncGenerator[ChatEvent, None]:
        """The same for a chat, up to ChatFinished."""
        return self._told(
            lambda listener: self._engine.submit_chat(permit, listener, deadline_seconds=deadline_seconds)
        )

    async def _told(self, submit: Callable[[Callable[[Told | Failed], None]], Job]) -> AsyncGenerator[Told, None]:
        queue: asyncio.Queue[Told | Failed] = asyncio.Queue()
        job = submit(_listener(asyncio.get_running_loop(), queue))
        self._queues.add(queue)
        complete = False
        try:
            while not complete:
                event = await queue.get()
                if isinstance(event, Failed):
                    raise event.error
                complete = isinstance(event, Completed | ChatFinished)
                tracing.told(event)
                yield event
        finally:
            self._queues.discard(queue)
            if not complete:  # a failure that was not the job's own, such as the drain's end, leaves it running
                job.cancel()

    def fail_all(self, message: str) -> None:
        """Ends every open job with EngineDown: a thread that has died may not have told their listeners."""
        for queue in self._queues:
            queue.put_nowait(Failed(EngineDown(message)))


async def whole(events: AsyncGenerator[Event, None]) -> tuple[list[Answer | Skipped], Completed]:
    """A job's outcomes, in the order in which they came, and its end."""
    outcomes: list[Answer | Skipped] = []
    async with contextlib.aclosing(events):
        async for event in events:
            match event:
                case Answered(outcome) | WasSkipped(outcome):
                    outcomes.append(outcome)
                case Completed():
                    return outcomes, event
    raise AssertionError("the bridge ends with Completed or raises")


def tell(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Has the loop call `function` soon; from any thread, and nothing happens once the loop has closed."""
    # The loop closes before the engine thread does, and then nobody is left to hear.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _listener(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Told]) -> Callable[[Told], None]:
    return lambda event: tell(loop, lambda: queue.put_nowait(event))

"""The DecisionService: each RPC reads its request, has it admitted, and hands the job's events back.

Runs on the event loop; tokenising (`admit`) runs on a worker thread. A caller that cancels, whose deadline passes or
who is gone ends the handler with CancelledError, and the bridge then stops the job before its next forward.
Knows nothing of how a decision is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc.aio
from grpc_status import rpc_status

from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import decision_pb2_grpc, info_pb2

from ..config import EngineConfig, ServerConfig
from ..engine.events import Answered, Completed, Event, ModelInfo, WasSkipped
from ..errors import EngineDown
from ..method.answers import Answer, Skipped
from ..method.request import DecisionRequest
from . import replies, requests
from .bridge import Bridge, Engine
from .status import refusal_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class DecisionServicer(decision_pb2_grpc.DecisionServiceServicer):
    """Serves one engine. Refuses every call with UNAVAILABLE until `open`."""

    def __init__(
        self, engine: Engine, bridge: Bridge, engine_config: EngineConfig, server_config: ServerConfig
    ) -> None:
        self._engine = engine
        self._bridge = bridge
        self._engine_config = engine_config
        self._server_config = server_config
        self._model: ModelInfo | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0

    def open(self, model: ModelInfo) -> None:
        """The model is warm: calls are taken from now on."""
        self._model = model

    async def wait_idle(self) -> None:
        """Waits until no call is being answered, slow readers of streams included."""
        await self._idle.wait()

    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.DecideResponse:
        """One state and its questions, answered together."""
        async with self._answering(context):
            decision, permit = await asyncio.to_thread(self._admitted, request)
            outcomes, completed = await self._whole(permit, context)
            return replies.decision_of(decision, outcomes, completed)

    async def DecideStream(
        self, request: pb.DecideStreamRequest, context: Context
    ) -> AsyncGenerator[pb.DecideStreamResponse, None]:
        """The same decision as events, each as soon as it is known."""
        async with self._answering(context):
            _, permit = await asyncio.to_thread(self._admitted, request.request)
            async with aclosing(self._events(permit, context)) as events:
                async for event in events:
                    yield replies.event_of(event)

    async def Prewarm(self, request: pb.PrewarmRequest, context: Context) -> pb.PrewarmResponse:
        """Reads a state before its questions arrive."""
        async with self._answering(context):
            permit = await asyncio.to_thread(self._admitted_state, request)
            _, completed = await self._whole(permit, context)
            return replies.prewarmed_of(completed)

    async def GetInfo(self, request: info_pb2.GetInfoRequest, context: Context) -> info_pb2.GetInfoResponse:
        """What is served, how it is read, and within which limits."""
        async with self._answering(context) as model:
            store = None if model.problem else self._engine.describe_store()
            return replies.info_of(model, store, self._engine_config, self._server_config)

    def _admitted(self, request: pb.DecideRequest) -> tuple[DecisionRequest, Any]:
        """The decision and its permit; on a worker thread, since a request's text may be long."""
        requests.check_sizes(request, self._engine_config, self._warm())
        decision = requests.decision_of(request, self._engine_config)
        return decision, self._engine.admit(decision)

    def _admitted_state(self, request: pb.PrewarmRequest) -> Any:
        requests.check_size("state", request.state, self._warm())
        return self._engine.admit_state(requests.state_of(request))

    def _events(self, permit: Any, context: Context) -> AsyncGenerator[Event, None]:
        return self._bridge.events(permit, context.time_remaining())

    async def _whole(self, permit: Any, context: Context) -> tuple[list[Answer | Skipped], Completed]:
        """A job's outcomes, in the order in which they came, and its end."""
        outcomes: list[Answer | Skipped] = []
        async with aclosing(self._events(permit, context)) as events:
            async for event in events:
                match event:
                    case Answered(outcome) | WasSkipped(outcome):
                        outcomes.append(outcome)
                    case Completed():
                        return outcomes, event
        raise AssertionError("the bridge ends with Completed or raises")

    @asynccontextmanager
    async def _answering(self, context: Context) -> AsyncIterator[ModelInfo]:
        """Counts the call, refuses it before the model is warm, and ends it with a rich status when it fails."""
        self._calls += 1
        self._idle.clear()
        try:
            yield self._warm()
        except Exception as error:  # every failure becomes a status; unknown ones INTERNAL with an id
            await _refuse(context, error)
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    def _warm(self) -> ModelInfo:
        if self._model is None:
            raise EngineDown("the model is still loading; try again in a moment")
        return self._model


async def _refuse(context: Context, error: Exception) -> None:
    refusal = refusal_of(error)
    status = rpc_status.to_status(refusal.status)
    # `abort` replaces the trailers that were set before, the request id among them.
    trailers = (*(context.trailing_metadata() or ()), *status.trailing_metadata, *refusal.trailers)
    await context.abort(status.code, status.details, trailers)

"""The DecisionService: each RPC reads its request, has it admitted, and hands the job's events back.

Runs on the event loop; tokenising (`admit`) runs on a worker thread. A caller that cancels, whose deadline passes or
who is gone ends the handler with CancelledError, and the bridge then stops the job before its next forward.
Knows nothing of how a decision is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import decision_pb2_grpc, info_pb2

from ..calibration_file import Calibrated
from ..config import EngineConfig, ServerConfig
from ..engine.events import Event, ModelInfo
from ..method.request import DecisionRequest
from . import replies, requests
from .bridge import Bridge, Engine, whole
from .calls import Calls, Context


class DecisionServicer(decision_pb2_grpc.DecisionServiceServicer):
    """Serves the decisions of one engine."""

    def __init__(
        self,
        engine: Engine,
        bridge: Bridge,
        calls: Calls,
        *,
        calibrated: Calibrated,
        engine_config: EngineConfig,
        server_config: ServerConfig,
    ) -> None:
        self._engine = engine
        self._bridge = bridge
        self._calls = calls
        self._calibrated = calibrated
        self._engine_config = engine_config
        self._server_config = server_config

    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.DecideResponse:
        """One state and its questions, answered together."""
        async with self._calls.answering(context) as model:
            decision, permit = await asyncio.to_thread(self._admitted, request, model)
            outcomes, completed = await whole(self._events(permit, context))
            return replies.decision_of(decision, outcomes, completed)

    async def DecideStream(
        self, request: pb.DecideStreamRequest, context: Context
    ) -> AsyncGenerator[pb.DecideStreamResponse, None]:
        """The same decision as events, each as soon as it is known."""
        async with self._calls.answering(context) as model:
            _, permit = await asyncio.to_thread(self._admitted, request.request, model)
            async with aclosing(self._events(permit, context)) as events:
                async for event in events:
                    yield replies.event_of(event)

    async def Prewarm(self, request: pb.PrewarmRequest, context: Context) -> pb.PrewarmResponse:
        """Reads a state before its questions arrive."""
        async with self._calls.answering(context) as model:
            permit = await asyncio.to_thread(self._admitted_state, request, model)
            _, completed = await whole(self._events(permit, context))
            return replies.prewarmed_of(completed)

    async def GetInfo(self, request: info_pb2.GetInfoRequest, context: Context) -> info_pb2.GetInfoResponse:
        """What is served, how it is read, and within which limits."""
        async with self._calls.answering(context) as model:
            store = None if model.problem else self._engine.describe_store()
            return replies.info_of(model, store, self._engine_config, self._server_config, self._calibrated.current)

    def _admitted(self, request: pb.DecideRequest, model: ModelInfo) -> tuple[DecisionRequest, Any]:
        """The decision and its permit; on a worker thread, since a request's text may be long."""
        requests.check_sizes(request, self._engine_config, model)
        decision = self._calibrated.applied(requests.decision_of(request, self._engine_config))
        return decision, self._engine.admit(decision)

    def _admitted_state(self, request: pb.PrewarmRequest, model: ModelInfo) -> Any:
        requests.check_size("state", request.state, model)
        state, adapter, service_class = requests.prewarm_of(request)
        return self._engine.admit_state(state, adapter=adapter, service_class=service_class)

    def _events(self, permit: Any, context: Context) -> AsyncGenerator[Event, None]:
        return self._bridge.events(permit, context.time_remaining())

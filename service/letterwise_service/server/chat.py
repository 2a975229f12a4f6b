"""The ChatService: reads a conversation, has it admitted, and hands the generated message back as it comes.

Runs on the event loop; tokenising (`admit_chat`) runs on a worker thread. A caller that cancels, whose deadline
passes or who is gone ends the handler with CancelledError, and the bridge then takes the chat out of its batch.
Knows nothing of how text is generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from letterwise.v1 import chat_pb2 as pb
from letterwise.v1 import chat_pb2_grpc

from ..config import EngineConfig
from ..engine.events import ModelInfo
from . import chat_messages
from .bridge import Bridge, Engine
from .calls import Calls, Context


class ChatServicer(chat_pb2_grpc.ChatServiceServicer):
    """Serves the chats of one engine."""

    def __init__(self, engine: Engine, bridge: Bridge, calls: Calls, config: EngineConfig) -> None:
        self._engine = engine
        self._bridge = bridge
        self._calls = calls
        self._config = config

    async def Chat(self, request: pb.ChatRequest, context: Context) -> AsyncGenerator[pb.ChatResponse, None]:
        """The next message of a conversation, as events."""
        async with self._calls.answering(context) as model:
            permit = await asyncio.to_thread(self._admitted, request, model)
            async with aclosing(self._bridge.chat_events(permit, context.time_remaining())) as events:
                async for event in events:
                    yield chat_messages.response_of(event)

    def _admitted(self, request: pb.ChatRequest, model: ModelInfo) -> Any:
        chat_messages.check_sizes(request, model)
        return self._engine.admit_chat(chat_messages.request_of(request, self._config))

"""The calls that are being answered, of every service: counted for a drain, refused before the model is warm.

Owns how a call that fails ends: with a rich status. Runs on the event loop. Knows nothing of what an RPC does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc.aio
from grpc_status import rpc_status

from ..engine.events import ModelInfo
from ..errors import EngineDown
from .status import refusal_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Calls:
    """The open calls of one server. Each is refused with UNAVAILABLE until `open`."""

    def __init__(self) -> None:
        self._model: ModelInfo | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = 0

    def open(self, model: ModelInfo) -> None:
        """The model is warm: calls are taken from now on."""
        self._model = model

    async def wait_idle(self) -> None:
        """Waits until no call is being answered, slow readers of streams included."""
        await self._idle.wait()

    @asynccontextmanager
    async def answering(self, context: Context) -> AsyncIterator[ModelInfo]:
        """Around a call: counts it, refuses it before the model is warm, ends it with a status when it fails."""
        self._count += 1
        self._idle.clear()
        try:
            yield self._warm()
        except Exception as error:  # every failure becomes a status; unknown ones INTERNAL with an id
            await _refuse(context, error)
        finally:
            self._count -= 1
            if self._count == 0:
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

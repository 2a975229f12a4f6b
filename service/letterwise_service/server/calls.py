"""The calls that are being answered, of every service and both doors: counted for a drain, refused before the model
is warm.

Owns how an RPC that fails ends: with a rich status. Runs on the event loop. Knows nothing of what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc.aio
from grpc_status import rpc_status

from ..engine.events import ModelInfo
from ..errors import Draining, EngineDown
from .status import refusal_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Calls:
    """The open calls of one server. Each is refused with UNAVAILABLE until `open`."""

    def __init__(self) -> None:
        self._model: ModelInfo | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = 0
        self._closing = False

    def open(self, model: ModelInfo) -> None:
        """The model is warm: calls are taken from now on."""
        self._model = model

    def close(self) -> None:
        """Nothing new is taken from now on."""
        self._closing = True

    @property
    def ready(self) -> bool:
        """Whether new calls are taken: the model is warm, and no drain has begun."""
        return self._model is not None and not self._closing

    @property
    def closing(self) -> bool:
        return self._closing

    def warm(self) -> ModelInfo:
        """What is served. Raises EngineDown before it is warm, Draining once nothing new is taken."""
        if self._closing:
            raise Draining("the server is going down; send the request to another")
        if self._model is None:
            raise EngineDown("the model is still loading; try again in a moment")
        return self._model

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around a call: a drain waits for its end."""
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Waits until no call is being answered, slow readers of streams included."""
        await self._idle.wait()

    @asynccontextmanager
    async def answering(self, context: Context) -> AsyncIterator[ModelInfo]:
        """Around an RPC: counts it, refuses it when none are taken, ends it with a status when it fails."""
        with self.counted():
            try:
                yield self.warm()
            except Exception as error:  # every failure becomes a status; unknown ones INTERNAL with an id
                await refuse(context, error)


async def refuse(context: Context, error: Exception) -> None:
    """Ends an RPC with the error's status."""
    refusal = refusal_of(error)
    status = rpc_status.to_status(refusal.status)
    # `abort` replaces the trailers that were set before, the request id among them.
    trailers = (*(context.trailing_metadata() or ()), *status.trailing_metadata, *refusal.trailers)
    await context.abort(status.code, status.details, trailers)

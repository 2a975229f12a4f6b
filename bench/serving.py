"""A server of both doors in this process, in front of an engine that whoever serves keeps a hand on.

On the event loop that calls. Knows nothing of what is asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.server.app import App
from tests.server.real import free_port


@asynccontextmanager
async def served(engine: Any, config: EngineConfig, **settings: Any) -> AsyncIterator[App]:
    """A warm server on free ports, drained at the block's end. Raises what keeps the model from loading."""
    app = App(engine, config, ServerConfig(**{"port": 0, "http_port": free_port(), **settings}))
    await app.start()
    ready = asyncio.Event()
    ended = asyncio.create_task(app.run(lambda model: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if ended.done():
            ended.result()
        yield app
    finally:
        app.stop()
        await asyncio.wait([ended])

"""A server for clients that block: on an event loop of its own thread, in front of the scripted engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.server.app import App
from tests.server.real import free_port
from tests.server.scripted import ScriptedEngine


class Served:
    """A warm server: where it is, and the engine behind it."""

    def __init__(self, engine: ScriptedEngine, app: App) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{app.http_port}"
        self.target = f"127.0.0.1:{app.port}"


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    """One server for a file of tests."""
    engine = ScriptedEngine(EngineConfig(queue_jobs=3, max_samples=4))
    started: Future[tuple[asyncio.AbstractEventLoop, App]] = Future()
    warm = threading.Event()

    async def serve() -> None:
        app = App(engine, engine.config, ServerConfig(port=0, http_port=free_port(), drain_seconds=1.0))
        await app.start()
        started.set_result((asyncio.get_running_loop(), app))
        assert await app.run(lambda model: warm.set()) == 0

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, app = started.result(10)
    assert warm.wait(10)
    yield Served(engine, app)
    loop.call_soon_threadsafe(app.stop)
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The server as it was: no error that a test left in its engine."""
    yield running
    running.engine.admit_error = None
    running.engine.release()


def plain(value: object) -> object:
    """A value as JSON would give it back, to be compared."""
    return json.loads(json.dumps(value))

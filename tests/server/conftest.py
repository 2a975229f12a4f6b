"""A real server on a free port in front of the scripted engine, and a stub that speaks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from letterwise.v1 import chat_pb2_grpc, decision_pb2_grpc
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.engine.events import ModelInfo
from letterwise_service.server.app import App
from letterwise_service.server.tracing import Tracing

from .scripted import ScriptedEngine

if TYPE_CHECKING:
    from .web import Web


@dataclass
class Running:
    """A server under test. `ended` is the task of its whole life; its result is the exit code."""

    app: App
    engine: ScriptedEngine
    channel: grpc.aio.Channel
    ended: asyncio.Task[int]
    ready: asyncio.Event
    stub: decision_pb2_grpc.DecisionServiceAsyncStub = field(init=False)
    chat: chat_pb2_grpc.ChatServiceAsyncStub = field(init=False)
    health: health_pb2_grpc.HealthStub = field(init=False)

    def __post_init__(self) -> None:
        self.stub = decision_pb2_grpc.DecisionServiceStub(self.channel)
        self.chat = chat_pb2_grpc.ChatServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def status(self, service: str = "") -> str:
        """What health says, by name."""
        reply = await self.health.Check(health_pb2.HealthCheckRequest(service=service))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


def plain_channel(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}")


async def launch(
    engine: ScriptedEngine,
    *,
    drain_seconds: float = 60.0,
    tracing: Tracing | None = None,
    channel: Callable[[int], grpc.aio.Channel] = plain_channel,
    **settings: Any,
) -> Running:
    """Starts a server; does not wait until it is warm. `channel` opens one to a port."""
    given: dict[str, Any] = {"http_port": 0, **settings}
    config = ServerConfig(port=0, drain_seconds=drain_seconds, max_message_bytes=2**20, **given)
    app = App(engine, engine.config, config, tracing)
    await app.start()
    ready = asyncio.Event()

    def announce(model: ModelInfo) -> None:
        ready.set()

    ended = asyncio.create_task(app.run(announce))
    return Running(app, engine, channel(app.port), ended, ready)


async def shut(running: Running) -> None:
    """Ends the server however it stands."""
    running.engine.loaded.set()
    running.engine.release()
    running.app.stop()
    running.app.stop()
    await running.channel.close()
    await asyncio.wait([running.ended], timeout=10)


def small_engine() -> ScriptedEngine:
    return ScriptedEngine(EngineConfig(queue_jobs=3, max_questions=8, max_options=60, max_samples=4))


@pytest.fixture
def engine() -> ScriptedEngine:
    return small_engine()


@pytest.fixture
async def loading(engine: ScriptedEngine) -> AsyncIterator[Running]:
    """A server whose model is still loading."""
    engine.loaded.clear()
    running = await launch(engine)
    yield running
    await shut(running)


@pytest.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[Running]:
    """A server that is warm."""
    running = await launch(engine)
    await asyncio.wait_for(running.ready.wait(), 30)
    yield running
    await shut(running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_web() -> AsyncIterator[Web]:
    """One server of both doors for all tests of a file."""
    from .web import opened  # which is made of what stands here

    async with opened(small_engine()) as web:
        yield web


@pytest.fixture
def web(shared_web: Web) -> Iterator[Web]:
    """The file's server, its engine as new for each test that leaves it running."""
    yield shared_web
    shared_web.reset()

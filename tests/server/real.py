"""A real server on a real engine with a tiny model, its metrics' port open."""

from __future__ import annotations

import asyncio
import random
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from letterwise.v1 import chat_pb2_grpc, decision_pb2_grpc
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.server.app import App


@dataclass
class Real:
    """A server under test. `ended` is the task of its whole life; its result is the exit code."""

    engine: Engine
    app: App
    channel: grpc.aio.Channel
    metrics_port: int
    ended: asyncio.Task[int]

    @property
    def http_port(self) -> int:
        return self.app.http_port

    @property
    def stub(self) -> decision_pb2_grpc.DecisionServiceAsyncStub:
        return decision_pb2_grpc.DecisionServiceStub(self.channel)

    @property
    def chat(self) -> chat_pb2_grpc.ChatServiceAsyncStub:
        return chat_pb2_grpc.ChatServiceStub(self.channel)

    async def watch(self) -> AsyncIterator[str]:
        """What health says, by name, now and whenever it changes."""
        async for reply in health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest()):
            yield health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)

    async def scrape(self) -> Scraped:
        """What Prometheus would see now."""
        return Scraped(await asyncio.to_thread(self.fetch))

    def fetch(self) -> str:
        return fetch(self.metrics_port)


class Scraped:
    """One scrape, parsed: families by name, and samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name with these labels among theirs."""
        return sum(
            value for (known, having), value in self.samples.items() if known == name and labels.items() <= having
        )


def fetch(port: int) -> str:
    """The text of `/metrics` on a port of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        return str(reply.read().decode())


def free_port() -> int:
    """A port that nobody has now, below those that the system gives to connections in the meantime."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Real]:
    """A warm server, ended at the block's end however it stands."""
    config, port = EngineConfig(model=str(folder), check_store_when_idle=True), free_port()
    engine = Engine(config)
    app = App(engine, config, ServerConfig(port=0, http_port=free_port(), metrics_port=port, drain_seconds=1.0))
    await app.start()
    ready = asyncio.Event()
    ended = asyncio.create_task(app.run(lambda model: ready.set()))
    await asyncio.wait_for(ready.wait(), 60)
    real = Real(engine, app, grpc.aio.insecure_channel(f"127.0.0.1:{app.port}"), port, ended)
    try:
        yield real
    finally:
        app.stop()
        app.stop()
        await real.channel.close()
        await asyncio.wait([ended], timeout=10)

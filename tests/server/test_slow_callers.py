"""Callers who are slow, silent or asleep, and a clock that jumps: none of them holds anybody else."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

import letterwise
import letterwise_service
from letterwise.v1 import chat_pb2, chat_pb2_grpc
from letterwise.v1 import decision_pb2 as pb
from letterwise_service.config import EngineConfig
from letterwise_service.server import http_bodies

from . import bodies
from .scripted import ScriptedEngine
from .test_gateway_lifetime import BODY, HEAD
from .test_lifetime import submitted
from .web import TICKET, Web, opened

MANY = 40
WORDS = 400
DAY_SECONDS = 86_400.0
# Where the time of day may be read, and what for.
CLOCKS = {
    ("gateway.py", "time.time"),  # the day on which the model was "released", as a list of models tells it
    ("tracing.py", "time.time_ns"),  # the beginning of a span
}


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    """A server with room for all of them."""
    async with opened(ScriptedEngine(EngineConfig(queue_jobs=4 * MANY))) as web:
        yield web


async def test_dripping_bodies_are_ended_and_hold_nobody(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty bodies come a byte at a time: others are answered meanwhile, and when the time of a body is up, however
    much of it has come, each is told so and its connection closed."""
    monkeypatch.setattr(http_bodies, "BODY_SECONDS", 1.0)
    slow = [await web.raw(HEAD + b"\r\n") for _ in range(MANY)]

    for byte in BODY[:5]:  # what is sent past the end would have the system drop the refusal unread
        for _, writer in slow:
            writer.write(bytes((byte,)))
        assert (await web.post(TICKET)).status_code == 200
    assert not any(reader.at_eof() for reader, _ in slow)
    replies = [await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30) for reader, _ in slow]
    assert {reply.split(b"\r\n")[0][:12] for reply in replies} == {b"HTTP/1.1 408"}
    assert all(b"connection: close" in reply for reply in replies)
    assert len(web.engine.jobs) == 5


async def test_silent_connections_hold_nobody(web: Web) -> None:
    """Peers that connect to either door and say nothing, or half of a request, and are gone without a word."""
    ports = (web.port, web.running.app.port)
    silent = [await asyncio.open_connection("127.0.0.1", port) for port in ports for _ in range(MANY)]
    for _, writer in silent[::2]:
        writer.write(b"PRI * HTTP/2.0\r\n")
    assert (await web.post(TICKET)).status_code == 200
    assert (await web.running.stub.Decide(bodies.ticket())).answers
    for _, writer in silent:
        writer.transport.abort()
    assert (await web.post(TICKET)).status_code == 200


async def test_sleeping_readers_hold_neither_the_engine_nor_memory(web: Web) -> None:
    """Streams that nobody reads: the engine ends every one of their jobs, what waits for a reader is no more than its
    job told, and it is let go of with the connection."""
    asked = chat_pb2.ChatRequest(
        messages=[chat_pb2.ChatMessage(role="user", content="word " * WORDS)], max_tokens=WORDS
    )
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{web.running.app.port}")
    chats = [chat_pb2_grpc.ChatServiceStub(channel).Chat(asked) for _ in range(MANY)]
    readers = [await web.raw(HEAD + b"Accept: text/event-stream\r\n\r\n" + BODY) for _ in range(MANY)]
    await submitted(web.engine, 2 * MANY)
    assert await asyncio.to_thread(web.engine.wait_idle, 20)
    assert (await web.post(TICKET)).status_code == 200
    waiting = [queue.qsize() for queue in web.running.app._bridge._queues]
    assert max(waiting, default=0) <= WORDS + 2
    await channel.close(grace=None)
    for _, writer in readers:
        writer.transport.abort()
    async with asyncio.timeout(5):
        while web.running.app._bridge._queues:
            await asyncio.sleep(0.01)
    assert len(chats) == MANY


@pytest.mark.parametrize("jump_seconds", [DAY_SECONDS, -DAY_SECONDS])
async def test_clock_that_jumps_moves_no_deadline(
    web: Web, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    """The time of day is set a day on or back while decisions run: each is answered, and later ones too."""
    web.engine.hold()
    by_http = asyncio.ensure_future(web.post(TICKET))
    by_grpc = asyncio.ensure_future(web.running.stub.Decide(bodies.ticket()))
    stream = web.running.stub.DecideStream(pb.DecideStreamRequest(request=bodies.ticket()))
    await submitted(web.engine, 3)
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + jump_seconds)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + round(jump_seconds * 1e9))
    await asyncio.sleep(0.05)
    web.engine.release()
    assert (await asyncio.wait_for(by_http, 30)).status_code == 200
    assert (await asyncio.wait_for(by_grpc, 30)).answers
    assert [event async for event in stream][-1].HasField("completed")
    assert (await web.post(TICKET)).status_code == 200
    assert not any(job.stopping.is_set() for job in web.engine.jobs)
    web.running.app.stop()
    assert await asyncio.wait_for(web.running.ended, 30) == 0


def test_time_of_day_is_read_for_show_alone() -> None:
    """Deadlines, waits and ages are counted on a clock that nobody sets."""
    assert set(_clocks()) == CLOCKS


def _clocks() -> Iterator[tuple[str, str]]:
    """Each place in the two packages where code asks for the time of day: the file, and what it asks."""
    for package in (letterwise, letterwise_service):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    asked = f"{node.value.id}.{node.attr}"
                    if asked in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"):
                        yield path.name, asked

"""The engine's thread dies under a real server: every caller is told, health turns, and the server ends with 1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from letterwise.v1 import chat_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise_service.engine.chat.lane import ChatLane
from letterwise_service.engine.reading.reader import Reader
from tests.engine.engines import Gate
from tests.tiny import tiny_folder

from . import bodies
from .real import Real, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


def kill(*_: Any, **__: Any) -> Any:
    raise SystemExit("no more")


def in_the_prefix(monkeypatch: pytest.MonkeyPatch, real: Real) -> None:
    monkeypatch.setattr(Reader, "extend", kill)


def among_the_tails(monkeypatch: pytest.MonkeyPatch, real: Real) -> None:
    monkeypatch.setattr(Reader, "read", kill)


def in_chat(monkeypatch: pytest.MonkeyPatch, real: Real) -> None:
    monkeypatch.setattr(ChatLane, "step", kill)


async def code_of(call: Any) -> grpc.StatusCode:
    """The code with which a call ends; OK when it ends well."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def whole(stream: Any) -> None:
    """Reads a stream to its end."""
    async for _ in stream:
        pass


@pytest.mark.parametrize("stage", [in_the_prefix, among_the_tails, in_chat])
async def test_every_caller_of_a_dead_engine_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stage: Callable[[pytest.MonkeyPatch, Real], None]
) -> None:
    """Unary and streamed decisions, a prewarm and chats, running and waiting: all UNAVAILABLE, then exit code 1."""
    async with serving(folder) as real:
        gate = await asyncio.to_thread(Gate, real.engine)
        said = chat_pb2.ChatRequest(messages=[chat_pb2.ChatMessage(role="user", content="Where?")], max_tokens=50)
        calls = [
            *(real.stub.Decide(bodies.ticket()) for _ in range(10)),
            whole(real.stub.DecideStream(pb.DecideStreamRequest(request=bodies.ticket()))),
            real.stub.Prewarm(pb.PrewarmRequest(state=bodies.text("a state of its own " * 30))),
            *(whole(real.chat.Chat(said)) for _ in range(2)),
        ]
        waiting = [asyncio.ensure_future(code_of(call)) for call in calls]
        async with asyncio.timeout(10):
            while len(real.engine._queue) < 13 or len(real.engine._line) < 2:
                await asyncio.sleep(0.01)
        stage(monkeypatch, real)
        gate.open()
        codes = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        assert codes == [grpc.StatusCode.UNAVAILABLE] * len(calls)
        assert await asyncio.wait_for(real.ended, 30) == 1


async def test_health_turns_when_an_idle_engine_dies(folder: Path) -> None:
    """With nobody waiting, the death is noticed all the same."""
    async with serving(folder) as real:
        watch = aiter(real.watch())
        assert await anext(watch) == "SERVING"
        real.engine._errands.add(kill)
        real.engine._queue.nudge()
        assert await asyncio.wait_for(anext(watch), 30) == "NOT_SERVING"
        assert await asyncio.wait_for(real.ended, 30) == 1

"""Chat over a real connection: what is streamed, what is refused, and how a call's end reaches the engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from letterwise.v1 import chat_pb2 as pb
from letterwise.v1 import errors_pb2, serving_pb2
from letterwise_service import errors
from letterwise_service.config import EngineConfig
from letterwise_service.method.chat import ChatMessage, ChatRequest
from letterwise_service.method.request import Adapter

from . import bodies
from .conftest import Running, launch, shut
from .scripted import ChatPermit, ScriptedEngine
from .test_failures import detail
from .test_lifetime import stopped, submitted


def said(*texts: str, **fields: Any) -> pb.ChatRequest:
    """A conversation in which user and assistant take turns; the last text is the user's."""
    roles = ["user" if place % 2 else "assistant" for place in range(len(texts), 0, -1)]
    messages = [pb.ChatMessage(role=role, content=text) for role, text in zip(roles, texts, strict=True)]
    return pb.ChatRequest(messages=messages, **fields)


async def replied(server: Running, request: pb.ChatRequest) -> list[pb.ChatResponse]:
    return [event async for event in server.chat.Chat(request)]


async def refused(server: Running, request: pb.ChatRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await replied(server, request)
    return caught.value


def requested(engine: ScriptedEngine) -> ChatRequest:
    """The chat that the engine was given last."""
    permit = engine.jobs[-1].permit
    assert isinstance(permit, ChatPermit)
    return permit.request


async def test_chat_streams_what_the_engine_tells(server: Running) -> None:
    """Started, each piece with its tokens, finished: every value of the engine's events, unrounded."""
    events = await replied(server, said("first", "fine", "one two 日本語"))
    assert [event.WhichOneof("event") for event in events] == ["started", "delta", "delta", "delta", "finished"]
    assert events[0].started == pb.ChatStarted(prompt_tokens=3, reused_tokens=2)
    assert [event.delta.text for event in events[1:4]] == ["日本語 ", "two ", "one "]
    assert [[(token.id, token.logprob) for token in event.delta.tokens] for event in events[1:4]] == [
        [(0, 0.0)],
        [(1, -1 / 3)],
        [(2, -2 / 3)],
    ]
    assert events[-1].finished == pb.ChatFinished(
        model="scripted",
        finish_reason=pb.FINISH_REASON_STOP,
        usage=pb.ChatUsage(input_tokens=3, output_tokens=3),
        queue_seconds=0.25,
        total_seconds=1.75,
    )


async def test_chat_tells_when_it_was_cut(server: Running) -> None:
    """A message that has its `max_tokens` says so."""
    finished = (await replied(server, said("a b c", max_tokens=2)))[-1].finished
    assert (finished.finish_reason, finished.usage.output_tokens) == (pb.FINISH_REASON_LENGTH, 2)


async def test_chat_fields_reach_the_engine(server: Running) -> None:
    """Each field as it came; what is absent has its default."""
    await replied(server, pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="hi")]))
    assert requested(server.engine) == ChatRequest((ChatMessage("user", "hi"),), max_tokens=512)
    request = pb.ChatRequest(
        messages=[pb.ChatMessage(role="system", content=""), pb.ChatMessage(role="user", content="hi")],
        max_tokens=2048,
        temperature=0.7,
        top_p=0.9,
        seed=2**64 - 1,
        stop=["\n", "END"],
        model="any",
        adapter=serving_pb2.Adapter(name="tone", scale=0.5),
    )
    await replied(server, request)
    assert requested(server.engine) == ChatRequest(
        (ChatMessage("system", ""), ChatMessage("user", "hi")),
        2048,
        0.7,
        0.9,
        2**64 - 1,
        ("\n", "END"),
        Adapter("tone", 0.5),
    )


async def test_chat_default_is_never_more_than_the_server_generates() -> None:
    """A server with a small limit lowers the default, and not what a caller names."""
    running = await launch(ScriptedEngine(EngineConfig(chat_max_tokens=5)))
    await asyncio.wait_for(running.ready.wait(), 30)
    finished = (await replied(running, said("w " * 9)))[-1].finished
    assert finished.usage.output_tokens == 5
    assert (await refused(running, said("w", max_tokens=6))).code() is grpc.StatusCode.INVALID_ARGUMENT
    await shut(running)


BAD: dict[str, tuple[pb.ChatRequest, str]] = {
    "no messages": (pb.ChatRequest(), "messages"),
    "too many messages": (said(*["x"] * 4097), "messages"),
    "an unknown role": (pb.ChatRequest(messages=[pb.ChatMessage(role="tool", content="x")]), "messages[0].role"),
    "no role": (pb.ChatRequest(messages=[pb.ChatMessage(content="x")]), "messages[0].role"),
    "a late system message": (
        pb.ChatRequest(messages=[pb.ChatMessage(role=role, content="x") for role in ("user", "system", "user")]),
        "messages[1].role",
    ),
    "a last word of the assistant's": (
        pb.ChatRequest(messages=[pb.ChatMessage(role=role, content="x") for role in ("user", "assistant")]),
        "messages[1].role",
    ),
    "no tokens": (said("x", max_tokens=0), "max_tokens"),
    "too many tokens": (said("x", max_tokens=2049), "max_tokens"),
    "a negative temperature": (said("x", temperature=-0.1), "temperature"),
    "a high temperature": (said("x", temperature=2.1), "temperature"),
    "a temperature that is no number": (said("x", temperature=math.nan), "temperature"),
    "a top_p of nothing": (said("x", top_p=0), "top_p"),
    "a top_p past all": (said("x", top_p=1.01), "top_p"),
    "too many stops": (said("x", stop=["a"] * 17), "stop"),
    "an empty stop": (said("x", stop=["a", ""]), "stop[1]"),
    "a long stop": (said("x", stop=["a" * 257]), "stop[0]"),
    "an adapter without a name": (said("x", adapter=serving_pb2.Adapter()), "adapter.name"),
    "a scale past any sense": (said("x", adapter=serving_pb2.Adapter(name="t", scale=-math.inf)), "adapter.scale"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_chat_names_its_field(server: Running, name: str) -> None:
    """Each kind of bad input is INVALID_ARGUMENT with its field's path, and nothing is queued."""
    request, field = BAD[name]
    error = await refused(server, request)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in [each.field for each in detail(error, error_details_pb2.BadRequest).field_violations]
    assert not server.engine.jobs


async def test_conversation_past_any_context_is_refused_unread(server: Running) -> None:
    """More bytes than the context could hold, in many messages, are OUT_OF_RANGE before they are read."""
    each = 64 * server.engine.info.context_tokens // 3
    error = await refused(server, said(*["x" * each] * 3))
    assert error.code() is grpc.StatusCode.OUT_OF_RANGE
    limit = detail(error, errors_pb2.TokenLimit)
    assert limit.tokens > limit.limit_tokens
    assert (error.details() or "").startswith("messages: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TooLong("too long", tokens=9, limit_tokens=8), grpc.StatusCode.OUT_OF_RANGE),
        (errors.InvalidRequest([errors.Violation("adapter.name", "?")]), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.OutOfMemory("no memory"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (KeyError("SECRET"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_chat_that_is_not_admitted_has_the_errors_code(
    server: Running, error: Exception, code: grpc.StatusCode
) -> None:
    """What the engine refuses reaches the caller by the same table as a decision's errors."""
    server.engine.admit_error = error
    got = await refused(server, said("x"))
    assert got.code() is code
    assert "SECRET" not in (got.details() or "")


async def test_full_chat_queue_says_when_to_come_back(server: Running) -> None:
    """RESOURCE_EXHAUSTED with the pushback; what was admitted is answered."""
    server.engine.hold()
    running = [asyncio.ensure_future(replied(server, said("a b"))) for _ in range(3)]
    await submitted(server.engine, 3)
    error = await refused(server, said("x"))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1500"
    server.engine.release()
    assert all(events[-1].HasField("finished") for events in await asyncio.gather(*running))


async def test_server_without_chat_says_so() -> None:
    """With no rows for it, a chat is UNIMPLEMENTED, and decisions are answered."""
    running = await launch(ScriptedEngine(EngineConfig(chat_rows=0)))
    await asyncio.wait_for(running.ready.wait(), 30)
    error = await refused(running, said("x"))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "--chat-rows 0" in (error.details() or "")
    assert (await running.stub.Decide(bodies.ticket())).answers
    await shut(running)


async def test_loading_server_refuses_chats(loading: Running) -> None:
    """UNAVAILABLE until the model is warm."""
    assert (await refused(loading, said("x"))).code() is grpc.StatusCode.UNAVAILABLE


async def _cancel(server: Running, call: Any) -> None:
    call.cancel()


async def _vanish(server: Running, call: Any) -> None:
    await server.channel.close(grace=None)


@pytest.mark.parametrize("leave", [_cancel, _vanish])
async def test_caller_who_leaves_stops_the_chat(server: Running, leave: Callable[[Running, Any], Any]) -> None:
    """A cancel and a lost connection both take the chat out of the engine; what was told before came at once."""
    server.engine.hold()
    call = server.chat.Chat(said("a b c"))
    assert (await call.read()).HasField("started")
    await leave(server, call)
    assert await stopped(server.engine.jobs[0])


async def test_deadline_of_the_caller_stops_the_chat(server: Running) -> None:
    """It reaches the engine with the chat, and its end stops it."""
    server.engine.hold()
    call = server.chat.Chat(said("a b c"), timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    job = server.engine.jobs[0]
    assert job.deadline_seconds is not None
    assert 0 < job.deadline_seconds <= 0.3
    assert await stopped(job)


async def test_finished_chat_is_not_cancelled(server: Running) -> None:
    """A chat that ended well is left alone."""
    await replied(server, said("a"))
    assert not server.engine.jobs[0].stopping.is_set()


async def test_unread_chat_does_not_hold_the_engine(server: Running) -> None:
    """A stream that nobody reads is generated to its end, which its `max_tokens` bounds; then it is read."""
    call = server.chat.Chat(said("w " * 600, max_tokens=600))
    job = await submitted(server.engine)
    async with asyncio.timeout(5):
        while not job.ended:
            await asyncio.sleep(0.005)
    assert (await server.stub.Decide(bodies.ticket())).answers
    assert len([event async for event in call]) == 602


async def test_drain_waits_for_chats(server: Running) -> None:
    """A chat that runs is streamed to its end, a new one is refused, and then the server ends."""
    server.engine.hold()
    events = aiter(server.chat.Chat(said("a b")))
    await anext(events)
    server.app.stop()
    await asyncio.sleep(0.05)
    assert (await refused(server, said("x"))).code() is grpc.StatusCode.UNAVAILABLE
    server.engine.release()
    assert [event async for event in events][-1].HasField("finished")
    assert await asyncio.wait_for(server.ended, 30) == 0


async def test_death_of_the_engine_ends_chats(server: Running) -> None:
    """An open chat gets UNAVAILABLE, and the server ends with a code."""
    server.engine.hold()
    call = server.chat.Chat(said("a b"))
    await call.read()
    server.engine.die()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(server.ended, 30) == 1

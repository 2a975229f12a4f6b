"""Requests that are too much, or no requests at all: refused at once, by name, with health answering all the while."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from letterwise.v1 import decision_pb2 as pb

from .conftest import Running

GARBAGE = [b"\x0a\x04\x0a\x02\xff\xfe", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 40, b"\x0a\x05ab"]


@pytest.mark.parametrize("body", GARBAGE, ids=["not UTF-8", "cut short", "garbage", "shorter than it says"])
@pytest.mark.parametrize(
    "method",
    ["DecisionService/Decide", "DecisionService/DecideStream", "DecisionService/Prewarm", "ChatService/Chat"],
)
async def test_undecodable_messages_are_the_callers_error(server: Running, method: str, body: bytes) -> None:
    """Bytes that are no message end INVALID_ARGUMENT with a request id, on every method."""
    streamed = method.endswith(("DecideStream", "Chat"))
    call = (server.channel.unary_stream if streamed else server.channel.unary_unary)(f"/letterwise.v1.{method}")(body)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if streamed else call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in str(caught.value.details())
    assert dict(caught.value.trailing_metadata() or ())["x-request-id"]


async def test_too_many_questions_are_refused_before_they_are_read(server: Running) -> None:
    """Half a million empty questions cost nothing but their bytes, and health answers meanwhile."""
    request = pb.DecideRequest(state=pb.Value(text="x"), questions=[pb.Question()] * 400_000)
    refused = asyncio.ensure_future(server.stub.Decide(request))
    assert await asyncio.wait_for(server.status(), 30) == "SERVING"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await refused
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 8 questions" in str(caught.value.details())


@pytest.mark.parametrize("field", ["state", "questions[0]"])
async def test_fields_past_any_context_are_refused_unread(server: Running, field: str) -> None:
    """A field with more bytes than the context could hold is OUT_OF_RANGE by its name."""
    limit = 64 * server.engine.info.context_tokens
    large = pb.Value(text="x" * (limit + 1))
    small = pb.Value(text="x")
    asked = pb.Question(id="q", instructions=small if field == "state" else large, noul=pb.Noul())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.Decide(pb.DecideRequest(state=large if field == "state" else small, questions=[asked]))
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert str(caught.value.details()).startswith(f"{field}: ")

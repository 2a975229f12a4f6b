"""A conversation goes out, and its next message comes back in pieces or whole, the same from both clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from letterwise import (
    Adapter,
    AsyncClient,
    BadReply,
    Cancelled,
    ChatDelta,
    ChatFinished,
    ChatMessage,
    ChatReply,
    ChatStarted,
    ChatToken,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    LetterwiseError,
    Unavailable,
    Usage,
)
from letterwise.chat import Transcript
from letterwise.v1 import chat_pb2, serving_pb2

WRONG: Any = 3  # where something else is wanted
LOGPROB = -0.1 - 0.2
TALK = [ChatMessage("system", "Be kind."), {"role": "user", "content": "hello"}]
END = ChatFinished("scripted", "stop", Usage(3, 3), 0.25, 1.5)
REPLY = ChatReply(
    "Be kind. hello", "stop", Usage(3, 3), tuple(ChatToken(i, LOGPROB) for i in range(3)), "scripted", 1, 0.25, 1.5
)


def test_request_has_what_was_given(server: Any) -> None:
    """Every field as it was given; what was not given is not sent."""
    with Client(server.target) as client:
        client.chat(
            TALK,
            max_tokens=7,
            temperature=1,
            top_p=0.5,
            seed=0,
            stop=["\n", "END"],
            adapter=Adapter("tone", 0.25),
            model="any",
        ).finish()
        client.chat("hi", stop=".").finish()
    full, least = server.servicer.requests
    assert full == chat_pb2.ChatRequest(
        messages=[chat_pb2.ChatMessage(role="system", content="Be kind."), _user("hello")],
        max_tokens=7,
        temperature=1,
        top_p=0.5,
        seed=0,
        stop=["\n", "END"],
        adapter=serving_pb2.Adapter(name="tone", scale=0.25),
        model="any",
    )
    assert least == chat_pb2.ChatRequest(messages=[_user("hi")], stop=["."])


def _user(text: str) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role="user", content=text)


def test_stream_tells_events_in_order(server: Any) -> None:
    """Started, a delta for each piece, finished; an event of a newer contract is passed over."""
    with Client(server.target) as client:
        events = list(client.chat(TALK))
    assert events == [
        ChatStarted(3, 1),
        ChatDelta("Be", (ChatToken(0, LOGPROB),)),
        ChatDelta(" kind.", (ChatToken(1, LOGPROB),)),
        ChatDelta(" hello", (ChatToken(2, LOGPROB),)),
        END,
    ]
    assert [event.kind for event in events] == ["started", "delta", "delta", "delta", "finished"]


def test_texts_and_finish_are_the_same_message(server: Any) -> None:
    """Piece by piece, whole, and whole after some pieces were taken."""
    with Client(server.target) as client:
        assert list(client.chat(TALK).texts()) == ["Be", " kind.", " hello"]
        assert client.chat(TALK).finish() == REPLY
        with client.chat(TALK) as stream:
            assert next(stream.texts()) == stream.text == "Be"
            assert stream.finish() == stream.finish() == REPLY
        assert stream.finish() == REPLY
        cut = client.chat(TALK, max_tokens=2).finish()
    assert (cut.text, cut.finish_reason, cut.usage) == ("Be kind.", "length", Usage(3, 2))


def test_async_client_equals_the_sync_one(server: Any) -> None:
    """The same message out, the same events, pieces and reply back."""

    async def everything() -> list[Any]:
        async with AsyncClient(server.target) as client:
            events = [event async for event in client.chat(TALK, max_tokens=2, seed=1)]
            texts = [text async for text in client.chat(TALK).texts()]
            async with client.chat(TALK) as stream:
                await anext(stream)
                first = (await anext(stream), stream.text)
                return [events, texts, first, await stream.finish()]

    with Client(server.target) as client:
        sync = [list(client.chat(TALK, max_tokens=2, seed=1)), list(client.chat(TALK).texts())]
        with client.chat(TALK) as stream:
            next(stream)
            sync += [(next(stream), stream.text), stream.finish()]
    assert asyncio.run(everything()) == sync
    requests = server.servicer.requests
    assert requests[:3] == requests[3:]


@pytest.mark.parametrize(
    ("messages", "settings", "field"),
    [
        (WRONG, {}, "messages"),
        (None, {}, "messages"),
        ({"role": "user", "content": "x"}, {}, "messages"),
        ([WRONG], {}, "messages[0]"),
        (["hi"], {}, "messages[0]"),
        ([{"role": "user"}], {}, "messages[0]"),
        ([{"role": "user", "content": "x", "name": "y"}], {}, "messages[0]"),
        ([ChatMessage("user", "x"), ChatMessage("user", WRONG)], {}, "messages[1].content"),
        ([{"role": None, "content": "x"}], {}, "messages[0].role"),
        ("half \ud800", {}, "messages[0].content"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": 2**32}, "max_tokens"),
        ("x", {"max_tokens": True}, "max_tokens"),
        ("x", {"max_tokens": 1.5}, "max_tokens"),
        ("x", {"temperature": "warm"}, "temperature"),
        ("x", {"top_p": True}, "top_p"),
        ("x", {"seed": -1}, "seed"),
        ("x", {"seed": 2**64}, "seed"),
        ("x", {"stop": 3}, "stop"),
        ("x", {"stop": ["a", None]}, "stop[1]"),
        ("x", {"adapter": WRONG}, "adapter"),
        ("x", {"model": WRONG}, "model"),
        ("x", {"timeout_seconds": 0}, "timeout_seconds"),
    ],
)
def test_value_that_cannot_travel_names_its_field(
    server: Any, messages: Any, settings: dict[str, Any], field: str
) -> None:
    """It is refused before anything is sent, by both clients."""

    async def from_coroutine() -> None:
        async with AsyncClient(server.target) as client:
            client.chat(messages, **settings)

    with Client(server.target) as client, pytest.raises(InvalidRequest) as refused:
        client.chat(messages, **settings)
    [violation] = refused.value.violations
    assert (violation.field, violation.description[:9]) == (field, "expected ")
    with pytest.raises(InvalidRequest) as again:
        asyncio.run(from_coroutine())
    assert again.value.violations == refused.value.violations
    assert server.servicer.requests == []


def test_failure_in_the_middle_keeps_what_came(server: Any, refusal: Any) -> None:
    """The error is raised where the text ends, and the text is still there; it is not asked again."""
    server.servicer.breaks = refusal(grpc.StatusCode.UNAVAILABLE, "it broke")

    async def broken() -> str:
        async with AsyncClient(server.target) as client, client.chat(TALK) as stream:
            with pytest.raises(Unavailable, match="it broke"):
                await stream.finish()
            return stream.text

    with Client(server.target) as client, client.chat(TALK) as stream:
        with pytest.raises(Unavailable, match="it broke"):
            stream.finish()
        assert stream.text == "Be"
    assert asyncio.run(broken()) == "Be"
    assert len(server.servicer.requests) == 2


def test_deadline_bounds_the_whole_stream(server: Any) -> None:
    """The client's own, or the call's; what came before is kept."""
    server.servicer.hold = threading.Event()
    with Client(server.target, timeout_seconds=0.3) as client:
        stream = client.chat(TALK)
        with pytest.raises(DeadlineExceeded, match=r"within 0\.3 s"):
            stream.finish()
        assert stream.text == "Be"
        with pytest.raises(DeadlineExceeded, match=r"within 0\.1 s"):
            client.chat(TALK, timeout_seconds=0.1).finish()


def test_leaving_a_chat_stops_it(server: Any) -> None:
    """Closed by its block, or by another thread while its reader waits; a closed chat has no whole message."""
    server.servicer.hold = threading.Event()
    with Client(server.target) as client:
        with client.chat(TALK) as stream:
            assert next(stream.texts()) == "Be"
        assert server.servicer.ended.wait(30)
        assert list(stream) == []
        with pytest.raises(Cancelled, match="closed before its end"):
            stream.finish()
        stream = client.chat(TALK)
        timer = threading.Timer(0.1, stream.close)
        timer.start()
        assert list(stream.texts()) == ["Be"]
        timer.join()


def test_leaving_an_async_chat_stops_it(server: Any) -> None:
    """The same from a coroutine."""

    async def leave_early() -> LetterwiseError:
        async with AsyncClient(server.target) as client:
            async with client.chat(TALK) as stream:
                async for _ in stream.texts():
                    break
            assert await asyncio.to_thread(server.servicer.ended.wait, 5)
            with pytest.raises(Cancelled) as closed:
                await stream.finish()
            return closed.value

    server.servicer.hold = threading.Event()
    assert "closed before its end" in str(asyncio.run(leave_early()))


def test_finished_chat_is_not_cancelled(server: Any) -> None:
    """Whoever stops at the last event has still let the call end well; so has the asynchronous client."""

    async def finished() -> None:
        async with AsyncClient(server.target) as client, client.chat(TALK) as stream:
            await stream.finish()

    with Client(server.target) as client, client.chat(TALK) as stream:
        stream.finish()
    asyncio.run(finished())
    assert server.servicer.left == [False, False]


def test_transcript_has_no_reply_before_the_end() -> None:
    """A stream that ends well without its last event is no whole message."""
    told = Transcript()
    told.take(ChatStarted(3, 1))
    told.take(ChatDelta("Be", ()))
    assert (told.text, told.reply()) == ("Be", None)
    told.take(END)
    assert told.reply() == ChatReply("Be", "stop", Usage(3, 3), (), "scripted", 1, 0.25, 1.5)


def test_stream_without_its_last_event_is_a_bad_reply(server: Any) -> None:
    """A server that ends the call early cannot pass half a message for a whole one."""
    server.servicer.events = []
    with Client(server.target) as client, pytest.raises(BadReply, match="without its last event"):
        client.chat("hi").finish()


def test_reason_of_a_later_contract_is_other(server: Any) -> None:
    """A finish reason that this client does not know does not fail the message."""
    later: Any = 9
    server.servicer.events = [chat_pb2.ChatResponse(finished=chat_pb2.ChatFinished(finish_reason=later))]
    with Client(server.target) as client:
        assert client.chat("hi").finish().finish_reason == "other"

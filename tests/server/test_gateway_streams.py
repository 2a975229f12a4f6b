"""Server-sent events: the same decision as DecideStream's, event by event, and how such a stream ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from letterwise.v1 import decision_pb2 as pb
from letterwise_service import errors

from .test_lifetime import stopped, submitted
from .web import TICKET, Web, ticket, told

EVENTS = {"accept": "text/event-stream"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def events_of(reply: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream that is read to its end."""
    return parsed((await reply.aread()).decode())


def parsed(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and data, by the form of a server-sent event: two lines and an empty one."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    told = []
    for block in blocks:
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        told.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return told


async def test_events_are_those_of_the_rpc(web: Web) -> None:
    """The same kinds in the same order as DecideStream's, with the same numbers."""
    reply = await web.post(TICKET, headers=EVENTS)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    assert "content-length" not in reply.headers
    events = await events_of(reply)
    request = pb.DecideStreamRequest(request=ticket())
    by_grpc = [event async for event in web.running.stub.DecideStream(request)]
    assert [name for name, _ in events] == [event.WhichOneof("event") for event in by_grpc]
    for (name, data), event in zip(events, by_grpc, strict=True):
        part = getattr(event, name)
        if name == "accepted":
            assert data == {"passes": part.passes, "prompt_tokens": part.prompt_tokens}
        if name == "prefix":
            assert data["done_tokens"] == part.done_tokens
            assert (data["total_tokens"], data["reused_tokens"]) == (part.total_tokens, part.reused_tokens)
        if name == "answer":
            assert (data["id"], data["letter_mass"]) == (part.question_id, part.letter_mass)
        if name == "skipped":
            assert (data["id"], data["because"]) == (part.question_id, part.because)


async def test_union_of_the_events_is_the_whole_reply(web: Web) -> None:
    """Answers and skips as in the JSON reply; `completed` is that reply without its answers."""
    whole = (await web.post(TICKET)).json()
    events = await events_of(await web.post(TICKET, headers={"accept": "application/json, text/event-stream;q=0.9"}))
    answers = {data["id"]: data["answer"] for name, data in events if name == "answer"}
    assert {id: answers[id] for id in whole["answers"]} == whole["answers"] != {}
    assert [data for name, data in events if name == "skipped"] == whole["diagnostics"]["skipped"]
    assert events[-1] == ("completed", {key: value for key, value in whole.items() if key != "answers"})


async def test_stream_is_given_only_to_those_who_take_one(web: Web) -> None:
    """JSON to everybody else."""
    for accept in ("application/json", "*/*", "text/event-stream;q=0", "text/html"):
        reply = await web.post(TICKET, headers={"accept": accept})
        assert reply.headers["content-type"] == "application/json"


async def test_events_come_as_they_happen(web: Web) -> None:
    """The first is there while the engine is held."""
    web.engine.hold()
    async with web.client.stream("POST", "/v1/systemone", json=TICKET, headers=EVENTS) as reply:
        pieces = reply.aiter_text()
        first = await asyncio.wait_for(anext(pieces), 30)
        assert [name for name, _ in parsed(first)] == ["accepted"]
        assert not web.engine.jobs[0].ended
        web.engine.release()
        rest = "".join([piece async for piece in pieces])
    assert parsed(rest)[-1][0] == "completed"


async def test_refusal_before_the_first_event_has_its_status(web: Web) -> None:
    """A bad body and a full queue are no streams."""
    told(await web.post({"state": "s"}, headers=EVENTS), 422)
    web.engine.admit_error = errors.QueueFull("the queue is full", retry_after_seconds=3)
    told(await web.post(TICKET, headers=EVENTS), 503)


async def test_failure_on_the_way_is_the_last_event(web: Web) -> None:
    """In the form of every refusal; nothing of the cause is told."""
    web.engine.scores = lambda text, letters: (float("nan"),) * letters
    events = await events_of(await web.post(TICKET, headers=EVENTS))
    assert [name for name, _ in events] == ["accepted", "prefix", "prefix", "error"]
    error = events[-1][1]["error"]
    assert error["code"] == 500
    assert error["error_id"] in error["message"]


async def test_reader_who_leaves_stops_the_job(web: Web) -> None:
    """Before its next forward."""
    web.engine.hold()
    async with web.client.stream("POST", "/v1/systemone", json=TICKET, headers=EVENTS) as reply:
        await anext(reply.aiter_text())
    assert await stopped(web.engine.jobs[0])
    assert web.engine.jobs[0].forwards == 0


async def test_reader_who_does_not_read_holds_nobody(web: Web) -> None:
    """The engine goes on, and so do others; the stream is whole when it is read at last."""
    body = json.dumps(TICKET).encode()
    head = "POST /v1/systemone HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n"
    reader, _ = await web.raw(f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body)
    job = await submitted(web.engine)
    async with asyncio.timeout(5):
        while not job.ended:
            await asyncio.sleep(0.005)
    assert (await web.post(TICKET)).status_code == 200
    assert b"event: completed" in await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 30)

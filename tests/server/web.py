"""A real server with its HTTP port open, and plain ways to speak to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from letterwise import jev
from letterwise.requests import decide_request
from letterwise.v1 import decision_pb2 as pb

from .conftest import Running, launch, shut
from .real import free_port
from .scripted import ScriptedEngine, scripted_scores

TICKET: dict[str, Any] = {
    "state": {"subject": "charged twice", "body": "日本語 🎫"},
    "samples": 2,
    "model": "jev-latest",
    "questions": {
        "escalate": {
            "type": "noul",
            "instructions": "Is a refund asked for?",
            "ask_if": {"team": ["billing", "technical", "other"]},
        },
        "refund": {"type": "noul", "instructions": "Is a refund asked for?"},
        "team": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {name: f"about {name}" for name in ("billing", "technical", "other")},
        },
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "middle", "high"]},
        "never": {"type": "noul", "instructions": "Is a refund asked for?", "ask_if": {"ghost": "no"}},
        "ghost": {
            "type": "choice",
            "instructions": "Is there one option?",
            "criteria": {"yes": None, "no": None},
            "ask_if": {"urgency": "low"},
        },
        # Whatever the scores are, one of the two is skipped.
        "fair": {"type": "noul", "instructions": "Is it fair?", "ask_if": {"refund": "yes"}},
        "unfair": {"type": "noul", "instructions": "Is it unfair?", "ask_if": {"refund": "no"}},
    },
}


def ticket() -> pb.DecideRequest:
    """The same request for gRPC."""
    body = jev.read_body(TICKET)
    return decide_request(body.state, body.questions, samples=body.samples)


class Web:
    """A server under test with its HTTP port."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.engine = running.engine
        self.port = running.app.http_port
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        self._writers: list[asyncio.StreamWriter] = []

    def reset(self) -> None:
        """The engine as it was, for the next test on this server."""
        self.engine.scores = scripted_scores
        self.engine.admit_error = None
        self.engine.release()
        self.engine.wait_idle(5)
        self.engine.jobs.clear()

    async def get(self, path: str, **settings: Any) -> httpx.Response:
        return await self.client.get(path, **settings)

    async def post(self, body: Any, path: str = "/v1/systemone", **settings: Any) -> httpx.Response:
        """Posts a JSON value, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, **settings)

    async def raw(self, *pieces: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of one's own, on which these bytes were sent; it is closed with the server."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return reader, writer

    async def close(self) -> None:
        await self.client.aclose()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def opened(engine: ScriptedEngine, *, warm: bool = True, **settings: Any) -> AsyncIterator[Web]:
    """A server, ended at the block's end however it stands."""
    running = await launch(engine, http_port=free_port(), **settings)
    if warm:
        await asyncio.wait_for(running.ready.wait(), 30)
    web = Web(running)
    try:
        yield web
    finally:
        await web.close()
        await shut(running)


def told(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal, in the one form that every refusal has."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert error["message"]
    assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"]
    return error

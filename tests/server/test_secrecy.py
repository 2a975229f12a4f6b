"""What callers write stays out of logs, metrics and errors, whichever door it came in by and whatever went wrong."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from prometheus_client import generate_latest

from letterwise.v1 import chat_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise_service import errors, metrics
from letterwise_service.config import EngineConfig
from letterwise_service.server import logs

from .conftest import Running
from .scripted import ScriptedEngine
from .web import Web, opened

# Every text of a caller's has a word of this form in it, which nothing else has.
MARK = re.compile(r"mark[xq]\w+", re.IGNORECASE)
STATE, ASKED, OPTION, ABOUT, LEVEL, SAID = (
    "markxstate",
    "markxasked",
    "markxoption",
    "markxabout",
    "markxlevel",
    "markxsaid",
)
TOKEN = "markxtoken"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that the process logs, at the level that servers have."""
    root, client = logging.getLogger(), logging.getLogger("httpx")
    level, handlers = root.level, root.handlers[:]
    client.disabled = True  # it is on the caller's side, and tells of what it sends
    stream = io.StringIO()
    logs.configure("info", stream, "json")
    yield stream
    client.disabled = False
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def engine() -> ScriptedEngine:
    """One whose queue is never full."""
    return ScriptedEngine(EngineConfig())


@pytest.fixture
async def web(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Web]:
    """Both doors of one server that wants a token."""
    (tmp_path / "tokens").write_text(TOKEN)
    async with opened(engine, token_file=str(tmp_path / "tokens")) as web:
        yield web


def value(text: str) -> pb.Value:
    return pb.Value(text=text)


def request(**fields: Any) -> pb.DecideRequest:
    """A decision in which everything is marked."""
    options = [pb.Option(name=f"{OPTION}{n}", description=value(f"{ABOUT}{n}")) for n in range(3)]
    questions = [
        pb.Question(id="a", instructions=value(ASKED), noul=pb.Noul(yes=value(ABOUT), no=value(ABOUT))),
        pb.Question(id="b", instructions=value(ASKED), choice=pb.Choice(options=options)),
        pb.Question(id="c", instructions=value(ASKED), score=pb.Score(levels=[value(LEVEL), value(f"{LEVEL}2")])),
    ]
    return pb.DecideRequest(**{"state": value(STATE), "questions": questions, **fields})


def body(**fields: Any) -> dict[str, Any]:
    """The same for HTTP."""
    questions = {
        "a": {"type": "noul", "instructions": ASKED, "criteria": {"true": ABOUT, "false": ABOUT}},
        "b": {"type": "choice", "instructions": ASKED, "criteria": {f"{OPTION}{n}": ABOUT for n in range(3)}},
        "c": {"type": "score", "instructions": ASKED, "criteria": [LEVEL, f"{LEVEL}2"]},
    }
    return {"state": STATE, "questions": questions, "model": "jev-latest", **fields}


def openai_body() -> dict[str, Any]:
    """And for OpenAI's route."""
    return {"model": "m", "input": STATE, "questions": [{"type": "predicate", "name": "a", "instructions": ASKED}]}


def chat(content: str = SAID, **fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(messages=[chat_pb2.ChatMessage(role="user", content=content)], **fields)


class Doors:
    """Calls by every door, each with what it says of its failure."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.running: Running = web.running

    async def all(self, **grpc_settings: Any) -> list[str]:
        """Whatever every door says of its failure, as text; nothing of a call that is answered."""
        settings = {"metadata": tuple(BEARER.items()), **grpc_settings}
        stub = self.running.stub
        asked = request()
        calls = [
            stub.Decide(asked, **settings),
            collected(stub.DecideStream(pb.DecideStreamRequest(request=asked), **settings)),
            stub.Prewarm(pb.PrewarmRequest(state=value(STATE)), **settings),
            collected(self.running.chat.Chat(chat(), **settings)),
        ]
        told = [await failure(call) for call in calls]
        for path, content in (
            ("/v1/systemone", body()),
            ("/v1/prewarm", body()),
            ("/v1/decisions", openai_body()),
        ):
            told.append(await self.post(content, path))
        told.append(await self.post(body(), headers={**BEARER, "accept": "text/event-stream"}))
        return [text for text in told if text]

    async def post(self, content: Any, path: str = "/v1/systemone", headers: dict[str, str] = BEARER) -> str:
        reply = await self.web.post(content, path, headers=headers)
        return f"{reply.headers} {reply.text}" if reply.is_error or "event: error" in reply.text else ""


async def collected(call: Any) -> None:
    async for _ in call:
        pass


async def failure(call: Any) -> str:
    """All that an RPC's failure says: message, details, trailers."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}"
    return ""


def assert_silent(log: io.StringIO, told: list[str], *, failed: int) -> None:
    """Nothing of a caller's in what was told to callers, logged, or can be scraped."""
    assert len(told) >= failed, told
    for where in (*told, log.getvalue(), generate_latest(metrics.REGISTRY).decode()):
        assert not MARK.search(where), where
    for line in log.getvalue().splitlines():
        json.loads(line)


async def test_answered_calls_leave_no_text_behind(web: Web, log: io.StringIO) -> None:
    """Every door answers, and is logged with its request's id and its caller's name."""
    assert await Doors(web).all() == []
    assert_silent(log, [], failed=0)
    ends = [line for line in map(json.loads, log.getvalue().splitlines()) if line["msg"] in ("rpc", "http")]
    assert len(ends) == 8
    assert all(line["request_id"] and line["caller"] == "token-1" for line in ends)


FAILURES: list[Exception] = [
    ValueError(f"{STATE} {ASKED} {OPTION}"),
    errors.ReadFailed("the model gave a letter score that is not a finite number"),
    errors.QueueFull("the queue is full", retry_after_seconds=1.5),
    errors.TooLong("too long", tokens=9, limit_tokens=8),
    errors.OutOfMemory("no memory"),
]


async def test_failure_on_admission_tells_no_text(web: Web, engine: ScriptedEngine, log: io.StringIO) -> None:
    """Foreseen or not, even where the cause's own message quotes the request."""
    for failure in FAILURES:
        engine.admit_error = failure
        assert_silent(log, await Doors(web).all(), failed=6)


async def test_failure_under_way_tells_no_text(web: Web, engine: ScriptedEngine, log: io.StringIO) -> None:
    """An error of the model's code that quotes its whole prompt."""

    def quoting(text: str, letters: int) -> tuple[float, ...]:
        raise ValueError(text)

    engine.scores = quoting
    assert_silent(log, await Doors(web).all(), failed=5)
    assert "ValueError" in log.getvalue()


async def test_stranger_and_deadline_tell_no_text(web: Web, engine: ScriptedEngine, log: io.StringIO) -> None:
    """A token that is not known is no part of its refusal; a call that ran out of time says only that."""
    stranger = (("authorization", "Bearer markxguess"),)
    assert_silent(log, await Doors(web).all(metadata=stranger), failed=4)
    reply = await web.post(body(), headers={"authorization": "Bearer markxguess"})
    assert_silent(log, [f"{reply.headers} {reply.text}"], failed=1)
    engine.hold()
    late = web.running.stub.Decide(request(), metadata=tuple(BEARER.items()), timeout=0.2)
    assert_silent(log, [await failure(late)], failed=1)
    engine.release()


MALFORMED = [
    request(questions=[]),
    request(state=pb.Value(json=f'{{"{STATE}": ')),
    request(state=pb.Value(json=f'{{"{STATE}": 1, "{STATE}": 2}}')),
    request(questions=[pb.Question(id="a", instructions=value(ASKED))]),
    request(
        questions=[
            pb.Question(
                id="a",
                instructions=value(ASKED),
                choice=pb.Choice(options=[pb.Option(name=f"{OPTION}\n"), pb.Option(name=OPTION)] * 2),
            )
        ]
    ),
    request(questions=[pb.Question(id="a", instructions=value(ASKED), score=pb.Score())]),
]
BODIES: list[Any] = [
    f'{{"state": "{STATE}", '.encode(),
    f'{{"extra": "{STATE}\\ud800", "state": "{STATE}", "state": "{STATE}"}}'.encode(),
    b"\xff" + STATE.encode(),
    body(samples=STATE),
    # a key of the body is a place in it, by which an error names what is wrong
    body(questions={"a": {"type": "choice", "instructions": ASKED, "criteria": {"\n": ABOUT}}}),
    body(questions={"a": {"type": OPTION, "instructions": ASKED}}),
    body(questions={"a": {"type": "score", "instructions": ASKED, "criteria": LEVEL}}),
    body(questions=[ASKED]),
    [STATE],
]


async def test_refused_requests_tell_no_text(web: Web, log: io.StringIO) -> None:
    """What is wrong is named by its place; the text that stands there is not quoted."""
    metadata = tuple(BEARER.items())
    told = [await failure(web.running.stub.Decide(one, metadata=metadata)) for one in MALFORMED]
    raw = web.running.channel.unary_unary("/letterwise.v1.DecisionService/Decide")
    told.append(await failure(raw(b"\xff" + STATE.encode(), metadata=metadata)))
    told.append(await failure(collected(web.running.chat.Chat(chat(temperature=-1), metadata=metadata))))
    doors = Doors(web)
    told += [await doors.post(one) for one in BODIES]
    told += [await doors.post(one, "/v1/decisions") for one in ([STATE], {**openai_body(), "questions": OPTION})]
    told.append(await doors.post(b"markxbytes", headers={**BEARER, "content-encoding": "zstd"}))
    told.append(await doors.post({}, f"/{STATE}"))
    assert all(told)
    assert_silent(log, told, failed=len(MALFORMED) + len(BODIES) + 6)


async def test_debug_level_says_the_text_of_a_failure(engine: ScriptedEngine, log: io.StringIO) -> None:
    """The one way to it, which an operator takes knowingly; the caller still learns nothing."""
    logs.configure("debug", log, "json")
    async with opened(engine) as web:
        engine.admit_error = ValueError(STATE)
        told = await failure(web.running.stub.Decide(request()))
        await asyncio.sleep(0)
    assert told
    assert not MARK.search(told)
    assert STATE in log.getvalue()

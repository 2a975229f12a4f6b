"""How an HTTP request and the HTTP port end: callers who leave, a model that loads, a drain, a port that is taken."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.server import http_server
from letterwise_service.server.app import App
from letterwise_service.server.listening import PortUnavailable

from .conftest import launch, shut
from .real import free_port
from .scripted import ScriptedEngine
from .test_lifetime import stopped, submitted
from .web import TICKET, Web, opened, told

BODY = json.dumps(TICKET).encode()
HEAD = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n".encode()


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def own(engine: ScriptedEngine) -> AsyncIterator[Web]:
    """A server that a test may end."""
    async with opened(engine) as web:
        yield web


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/prewarm", "/v1/decisions"])
async def test_caller_who_leaves_stops_the_job(web: Web, path: str) -> None:
    """A connection that ends while its answer is waited for stops the job before its next forward."""
    web.engine.hold()
    openai = {"input": "s", "questions": [{"type": "predicate", "instructions": "?"}]}
    call = asyncio.ensure_future(web.post(openai if path == "/v1/decisions" else TICKET, path))
    job = await submitted(web.engine)
    call.cancel()
    assert await stopped(job)
    assert job.forwards == 0


async def test_time_out_of_a_caller_stops_the_job(web: Web) -> None:
    """As a client's own time-out does, so that its next try does not come on top."""
    web.engine.hold()
    with pytest.raises(httpx.ReadTimeout):
        await web.post(TICKET, timeout=0.2)
    assert await stopped(web.engine.jobs[0])


async def test_answered_job_is_not_cancelled(web: Web) -> None:
    """A job that ended well is left alone, and the connection serves the next request."""
    for _ in range(2):
        assert (await web.post(TICKET)).status_code == 200
    assert not any(job.stopping.is_set() for job in web.engine.jobs)


async def test_pipelined_requests_are_answered_in_order(web: Web) -> None:
    """Two on one connection, sent together."""
    reader, _ = await web.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD + b"Connection: close\r\n\r\n" + BODY)
    replies = await asyncio.wait_for(reader.read(), 30)
    assert replies.count(b"HTTP/1.1 200") == 2
    assert replies.index(b"ALIVE") < replies.index(b'"answers"')


async def test_loading_server_is_alive_and_not_ready(engine: ScriptedEngine) -> None:
    """Every route that needs the model says when to come back; the others answer."""
    engine.loaded.clear()
    async with opened(engine, warm=False) as web:
        assert (await web.get("/healthz")).status_code == 200
        assert (await web.get("/metrics")).status_code == 200
        waiting = await web.get("/readyz")
        assert (waiting.status_code, waiting.json()) == (503, {"status": "NOT_SERVING"})
        for reply in (await web.post(TICKET), await web.get("/v1/models"), await web.post(TICKET, "/prewarm")):
            assert "loading" in told(reply, 503)["message"]
            assert reply.headers["retry-after"] == "1"
        engine.loaded.set()
        await asyncio.wait_for(web.running.ready.wait(), 30)
        assert (await web.get("/readyz")).status_code == 200
        assert (await web.post(TICKET)).status_code == 200


async def test_drain_answers_what_was_admitted_and_refuses_the_rest(own: Web) -> None:
    """Readiness turns at once; the open decision and the open stream end well; later ones get 503 and no connection."""
    own.engine.hold()
    running = asyncio.ensure_future(own.post(TICKET))
    streaming = asyncio.ensure_future(own.post(TICKET, headers={"accept": "text/event-stream"}))
    await submitted(own.engine, 2)
    idle_reader, _ = await own.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    own.running.app.stop()
    await asyncio.sleep(0.02)
    waiting = await own.get("/readyz")
    assert (waiting.status_code, waiting.headers["connection"]) == (503, "close")
    for _ in range(3):
        late = await own.post(TICKET)
        assert "going down" in told(late, 503)["message"]
        assert (late.headers["connection"], late.headers["retry-after"]) == ("close", "1")
        await asyncio.sleep(0.15)  # through the whole of the drain, past the news of it
    assert (await own.get("/healthz")).status_code == 200
    own.engine.release()
    assert (await running).json()["answers"]
    assert "event: completed" in (await streaming).text
    began = time.monotonic()
    assert await asyncio.wait_for(own.running.ended, 30) == 0
    assert time.monotonic() - began < 20  # the connection that only waited held nothing
    assert (await idle_reader.read()).startswith(b"HTTP/1.1 200")
    with pytest.raises(httpx.ConnectError):
        await own.get("/healthz")


async def test_drain_under_64_callers_loses_no_answer() -> None:
    """Each goes on asking until it is refused: every admitted decision is answered, no connection breaks."""
    engine = ScriptedEngine(EngineConfig(queue_jobs=100))
    async with opened(engine) as web:
        counts = [asyncio.ensure_future(answered_until_refused(web)) for _ in range(64)]
        await submitted(engine, 100)
        web.running.app.stop()
        answered = sum(await asyncio.wait_for(asyncio.gather(*counts), 30))
        assert await asyncio.wait_for(web.running.ended, 30) == 0
        assert answered == len(engine.jobs)
        assert not any(job.stopping.is_set() for job in engine.jobs)


async def answered_until_refused(web: Web) -> int:
    """How many decisions one caller was given, on connections that are kept as long as the server keeps them."""
    answered = 0
    while (reply := await web.post(BODY)).status_code == 200:
        assert reply.json()["answers"]
        answered += 1
    told(reply, 503)
    return answered


async def test_drain_is_cut_when_the_time_is_up(engine: ScriptedEngine) -> None:
    """Neither a decision that does not end nor the reader of a stream who has gone to sleep holds the exit."""
    async with opened(engine, drain_seconds=0.3) as web:
        engine.hold()
        call = asyncio.ensure_future(web.post(TICKET))
        await web.raw(HEAD + b"Accept: text/event-stream\r\n\r\n" + BODY)
        await submitted(engine, 2)
        web.running.app.stop()
        refused = await call
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        assert all([await stopped(job) for job in engine.jobs])
        assert await asyncio.wait_for(web.running.ended, 30) == 0


async def test_death_of_the_engine_ends_requests_and_server(own: Web) -> None:
    """503, readiness turns, and the exit code is not 0."""
    own.engine.hold()
    call = asyncio.ensure_future(own.post(TICKET))
    await submitted(own.engine)
    own.engine.die()
    told(await call, 503)
    assert await asyncio.wait_for(own.running.ended, 30) == 1


async def test_port_in_use_is_one_sentence() -> None:
    """The server does not start, says why, and leaves no port open that it had."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port, scrape = other.getsockname()[1], free_port()
        app = App(ScriptedEngine(), EngineConfig(), ServerConfig(port=0, http_port=port, metrics_port=scrape))
        with pytest.raises(PortUnavailable, match=rf"^cannot listen on 127.0.0.1:{port} for HTTP: [^\n]+$"):
            await app.start()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", scrape))


async def test_port_is_given_back_and_no_thread_stays(engine: ScriptedEngine) -> None:
    """After the end a second server takes the same port at once."""
    threads = set(threading.enumerate())
    async with opened(engine) as web:
        assert (await web.get("/healthz")).status_code == 200
        port = web.port
    app = App(ScriptedEngine(), EngineConfig(), ServerConfig(port=0, http_port=port))
    await app.start()
    assert app.http_port == port
    app.stop()
    assert await asyncio.wait_for(app.run(lambda model: None), 30) == 0
    left = {thread.name for thread in set(threading.enumerate()) - threads}
    assert not any("uvicorn" in name for name in left)


async def test_http_port_0_opens_none(engine: ScriptedEngine) -> None:
    """Off is off."""
    running = await launch(engine)
    assert running.app.http_port == 0
    await shut(running)


async def test_head_that_does_not_come_ends_its_connection(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, or drips its head, is closed; one that waits between requests is not."""
    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.2)
    patient, patient_writer = await web.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await patient.readuntil(b"ALIVE")).startswith(b"HTTP/1.1 200")
    silent, _ = await web.raw()
    dripping, dripping_writer = await web.raw(b"GET /healthz HTTP/1.1\r\n")
    for _ in range(3):
        await asyncio.sleep(0.1)
        dripping_writer.write(b"X-A: b\r\n")
    assert await asyncio.wait_for(silent.read(), 30) == b""
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(dripping.readexactly(1), 30)
    patient_writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"SERVING" in await asyncio.wait_for(patient.readuntil(b"SERVING"), 30)


async def test_large_head_is_refused(web: Web) -> None:
    """A head is bounded, however it is sent."""
    reader, _ = await web.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 100_000)
    assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"\x00" * 64],
)
async def test_what_is_no_http_is_refused_and_others_go_on(web: Web, junk: bytes) -> None:
    """TLS on a plain port, a broken length, zeros."""
    reader, _ = await web.raw(junk + b"\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 30))[:13] in (b"HTTP/1.1 400 ", b"")
    assert (await web.post(TICKET)).status_code == 200

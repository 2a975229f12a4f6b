"""Both doors of one server: `python -m bench doors`; single claims by `python -m bench.doors [NAME …] [--quick]`.

What HTTP takes longer than gRPC for the same kept decision, and how a server ends under 64 callers of both. The server
is a process of its own on the embedded model; the callers are here.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from letterwise import AsyncClient, Client, LetterwiseError, Noul

from . import workload
from .claims import Bench, Claim, Numbers
from .raw_http import Connection, TornOff

_ASKED = {"late": Noul("Is it late?")}
_QUESTIONS = {"late": {"type": "noul", "instructions": "Is it late?"}}
_JSON = {"Content-Type": "application/json"}
# How many log entries the states of the callers have: a new one is read in one forward.
_ENTRIES = 1
_PATIENCE_SECONDS = 120.0
_EXIT_SECONDS = 60.0


class Running(Protocol):
    """A server process, as the live tests start them."""

    target: str
    url: str

    def log(self) -> str: ...
    def terminate(self) -> None: ...
    def wait(self, seconds: float) -> int: ...


def compared(calls: int) -> Numbers:
    """One kept decision by both doors, in turns, each on one connection that stays: medians of a caller's time."""
    with tempfile.TemporaryDirectory() as folder:
        server = _server(Path(folder))
        try:
            return _compared(server, calls)
        finally:
            server.close()


def _compared(server: Running, calls: int) -> Numbers:
    state = workload.state(81_000)
    body = json.dumps({"state": state, "questions": _QUESTIONS}).encode()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection, by_http, by_grpc = http.client.HTTPConnection(host, int(port)), [], []
    with Client(server.target) as client:
        for number in range(calls + 5):  # the first are for the state and for whatever is made once
            began = time.perf_counter()
            by_its_client: Any = client.decide(state, _ASKED)["late"]
            middle = time.perf_counter()
            connection.request("POST", "/v1/systemone", body, _JSON)
            http_answers = json.loads(connection.getresponse().read())["answers"]
            ended = time.perf_counter()
            if http_answers["late"]["noul"] != by_its_client.probability:
                raise RuntimeError("the doors do not agree")
            if number >= 5:
                by_grpc.append(middle - began)
                by_http.append(ended - middle)
    connection.close()
    medians = [1000 * statistics.median(taken) for taken in (by_http, by_grpc)]
    return {
        "calls": calls,
        "http_p50_milliseconds": medians[0],
        "grpc_p50_milliseconds": medians[1],
        "http_over_grpc_ms": medians[0] - medians[1],
    }


@dataclass
class Ends:
    """What became of the callers' decisions. `lost`: neither answered nor refused."""

    answered_grpc: int = 0
    answered_http: int = 0
    refused_grpc: int = 0
    refused_http: int = 0
    found_nobody: int = 0
    lost: int = 0
    turned_seconds: float = -1.0


def terminated(callers: int, seconds: int) -> Numbers:
    """SIGTERM while so many callers ask, half by each door, a health watch open: who was answered, and the exit."""
    with tempfile.TemporaryDirectory() as folder:
        server = _server(Path(folder))
        try:
            return asyncio.run(drained(server, callers, float(seconds)))
        finally:
            server.close()


async def drained(server: Running, callers: int, seconds: float) -> Numbers:
    """Ends the server under load, after these seconds of it. Each caller asks until it is refused."""
    ends, stopping, before = Ends(), asyncio.Event(), _answered_by(server.log())
    watch = asyncio.create_task(_watch(server, ends, stopping))
    tasks = [asyncio.create_task(_by_grpc(server, ends, number)) for number in range(0, callers, 2)]
    tasks += [asyncio.create_task(_by_http(server, ends, number)) for number in range(1, callers, 2)]
    await asyncio.sleep(seconds)
    early = sum(task.done() for task in tasks)
    stopping.set()
    server.terminate()
    began = time.monotonic()
    code = await asyncio.to_thread(server.wait, _EXIT_SECONDS)
    exit_seconds = time.monotonic() - began
    await asyncio.gather(*tasks, watch)
    answered = ends.answered_grpc + ends.answered_http
    return {
        "callers": callers,
        "answered_grpc": ends.answered_grpc,
        "answered_http": ends.answered_http,
        "refused_grpc": ends.refused_grpc,
        "refused_http": ends.refused_http,
        "found_nobody": ends.found_nobody,
        "ended_before_the_signal": early,
        "drain_lost": ends.lost,
        "answered_by_its_log_and_not_heard": _answered_by(server.log()) - before - answered,
        "health_turned_seconds": ends.turned_seconds,
        "exit_code": code,
        "drain_exit_seconds": exit_seconds,
    }


async def _by_grpc(server: Running, ends: Ends, number: int) -> None:
    async with AsyncClient(server.target, retry=None, timeout_seconds=_PATIENCE_SECONDS) as client:
        while True:
            try:
                await client.decide(workload.state(82_000 + number % 8, _ENTRIES), _ASKED)
                ends.answered_grpc += 1
            except LetterwiseError as error:
                return _note_end(ends, str(error), error.code == "UNAVAILABLE")


def _note_end(ends: Ends, message: str, unavailable: bool) -> None:
    if unavailable and "going down" in message:
        ends.refused_grpc += 1
    elif unavailable and "refused" in message:
        ends.found_nobody += 1
    else:
        ends.lost += 1


async def _by_http(server: Running, ends: Ends, number: int) -> None:
    connection = Connection(int(server.url.rpartition(":")[2]))
    body = json.dumps({"state": workload.state(82_000 + number % 8, _ENTRIES), "questions": _QUESTIONS}).encode()
    head = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    try:
        while (reply := await connection.ask("POST", head + body)).status == 200:
            ends.answered_http += 1
        ends.refused_http += reply.status == 503
        ends.lost += reply.status != 503
    except ConnectionRefusedError:
        ends.found_nobody += 1
    except TornOff:
        ends.lost += 1
    finally:
        connection.close()


async def _watch(server: Running, ends: Ends, stopping: asyncio.Event) -> None:
    """A health watch that is open to the end; notes how long after the signal it turned."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await stopping.wait()
        began = time.monotonic()
        if (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING:
            ends.turned_seconds = time.monotonic() - began
        try:
            await watch.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            return


def _answered_by(log: str) -> int:
    """How many decisions a server's log says that it answered."""
    return len(re.findall(r" msg=rpc .*method=Decide code=OK ", log)) + len(
        re.findall(r" msg=http .*route=/v1/systemone .*status=200 ", log)
    )


def _server(folder: Path) -> Any:
    """A warm server on the embedded model, its HTTP port open."""
    from tests.live.processes import Server
    from tests.server.real import free_port

    return Server(folder, "--http-port", str(free_port()))


CLAIMS: dict[str, Claim] = {
    "doors": (partial(compared, 100), partial(compared, 20)),
    "drain": (partial(terminated, 64, 5), partial(terminated, 16, 2)),
}
# key → (claim, its number)
KEYS = {
    "http_over_grpc_ms": ("doors", "http_over_grpc_ms"),
    "drain_lost": ("drain", "drain_lost"),
    "drain_exit_seconds": ("drain", "drain_exit_seconds"),
}

BENCH = Bench("doors", CLAIMS, KEYS)
run = BENCH.run

if __name__ == "__main__":
    BENCH.main()

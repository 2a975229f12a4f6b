"""A long time under mixed callers: `python -m bench.soak [--minutes 20] [--callers 12]`.

Decisions, chats, prewarms and callers who leave, over both doors of one server on the embedded model, while its tokens
and its calibration are read again and again. Each minute a row: what was done, and what the process holds. The exit
code is 1 when anything failed or differed, or when more was left behind at the end than at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from letterwise import AsyncClient, jev
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.server.app import App

from . import workload
from .leftovers import Standing, bare, standing
from .lineup import say
from .raw_http import Connection
from .serving import served

_STATES, _ENTRIES = 40, (1, 2, 4, 12)
_QUESTIONS: dict[str, Any] = {
    "money": {"type": "noul", "instructions": "Does any customer ask for the money back?"},
    "team": {"type": "choice", "instructions": "Who takes over?", "criteria": {"billing": None, "returns": "parcels"}},
    "urgent": {"type": "score", "instructions": "How urgent is it?", "criteria": ["it can wait", "today", "now"]},
}
# What a caller does next, of twenty.
_DEEDS = {"grpc": 6, "http": 6, "stream": 2, "chat": 2, "prewarm": 2, "leave": 2}
_RENEW = 0.05  # the share of deeds before which a caller connects anew
_RELOAD_SECONDS = 7.0
_PATIENCE_SECONDS = 600.0
_COLUMNS = (*_DEEDS, "reloads", "wrong", "failed", "arrays_mib", "memory_mib", "files", "threads")
# How much more there may be at the end: transports that are being closed, a pool's threads.
_FILES, _THREADS, _RESIDENT, _ARRAYS = 24, 8, 1.15, 1.001


class Soak:
    """One server's callers, and what became of them."""

    def __init__(self, target: str, http_port: int, token: str) -> None:
        self.counts: Counter[str] = Counter()
        self._target, self._http_port, self._token = target, http_port, token
        self._known: dict[str, Any] = {}

    async def call(self, number: int, end: float) -> None:
        """One caller, until the time is up."""
        draw = Random(number)
        while time.monotonic() < end:
            async with AsyncClient(self._target, token=self._token, timeout_seconds=_PATIENCE_SECONDS) as client:
                with contextlib.closing(Connection(self._http_port)) as http:
                    while time.monotonic() < end and draw.random() > _RENEW:
                        await self._do(draw, client, http)

    async def _do(self, draw: Random, client: AsyncClient, http: Connection) -> None:
        deed = draw.choices(list(_DEEDS), weights=list(_DEEDS.values()))[0]
        body = _body(draw)
        deeds: dict[str, Callable[[], Awaitable[Any]]] = {
            "grpc": lambda: self._by_grpc(client, body),
            "http": lambda: self._by_http(http, body),
            "stream": lambda: self._by_http(http, body, b"Accept: text/event-stream\r\n"),
            "chat": lambda: _chat(client, draw),
            "prewarm": lambda: self._prewarm(draw, client, http, body),
            "leave": lambda: self._leave(draw, body),
        }
        try:
            await deeds[deed]()
            self.counts[deed] += 1
        except Exception as error:  # every kind of failure is what a soak looks for
            self.counts["failed"] += 1
            say(f"{deed} failed: {error!r}")

    async def _by_grpc(self, client: AsyncClient, body: dict[str, Any]) -> None:
        read = jev.read_body(body)
        decision = await client.decide(read.state, read.questions, samples=read.samples)
        self._compare(body, jev.reply(decision)["answers"])

    async def _by_http(self, http: Connection, body: dict[str, Any], headers: bytes = b"") -> None:
        reply = await http.ask("POST", self._request("/v1/systemone", body, headers))
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {reply.body[:200]!r}")
        self._compare(body, _streamed(reply.body) if headers else json.loads(reply.body)["answers"])

    async def _prewarm(self, draw: Random, client: AsyncClient, http: Connection, body: dict[str, Any]) -> None:
        if draw.random() < 0.5:
            await client.prewarm(body["state"])
        elif (reply := await http.ask("POST", self._request("/v1/prewarm", {"state": body["state"]}))).status != 200:
            raise RuntimeError(f"{reply.status} {reply.body[:200]!r}")

    async def _leave(self, draw: Random, body: dict[str, Any]) -> None:
        """Asks on a connection of its own, and hangs up after a random time."""
        seconds = draw.expovariate(1.0)
        if draw.random() < 0.5:
            with contextlib.closing(Connection(self._http_port)) as http:
                await http.leave(self._request("/v1/systemone", body), seconds)
            return
        async with AsyncClient(self._target, token=self._token, timeout_seconds=_PATIENCE_SECONDS) as client:
            read = jev.read_body(body)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.decide(read.state, read.questions), seconds)

    def _request(self, path: str, body: dict[str, Any], headers: bytes = b"") -> bytes:
        text = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n".encode() + headers
        return head + b"Content-Length: %d\r\n\r\n" % len(text) + text

    def _compare(self, body: dict[str, Any], answers: Any) -> None:
        """The same request has the same numbers, whichever door it came by and whatever ran beside it."""
        if self._known.setdefault(json.dumps(body), answers) != answers:
            self.counts["wrong"] += 1


def _body(draw: Random) -> dict[str, Any]:
    asked = list(_QUESTIONS.items())[: draw.randrange(1, len(_QUESTIONS) + 1)]
    state = workload.state(95_000 + draw.randrange(_STATES), draw.choice(_ENTRIES))
    return {"state": state, "questions": dict(asked), "samples": draw.choice((1, 1, 2))}


def _streamed(events: bytes) -> dict[str, Any]:
    told = [json.loads(line[6:]) for line in events.split(b"\n") if line.startswith(b"data: ")]
    if "usage" not in told[-1]:
        raise RuntimeError(f"a stream ended with {told[-1]}")
    return {event["id"]: event["answer"] for event in told if "answer" in event}


async def _chat(client: AsyncClient, draw: Random) -> None:
    stream = client.chat(f"Tell me about lighthouse {draw.randrange(50)}.", max_tokens=draw.randrange(2, 16))
    async with contextlib.aclosing(stream) as events:
        async for _ in events:
            pass


async def _reload(app: App, soak: Soak, tokens: Path, calibration: Path, token: str) -> None:
    """A token comes and goes, a calibration is broken and mended: nobody who holds the other token notices."""
    for number in itertools.count():
        await asyncio.sleep(_RELOAD_SECONDS)
        tokens.write_text(f"soak:{token}\nother:{secrets.token_urlsafe()}\n")
        calibration.write_text("temperature = [" if number % 3 == 2 else "temperature = 0.85\n")
        app.reload()
        soak.counts["reloads"] += 1


async def soak(minutes: float, callers: int) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, calibration, token = Path(folder, "tokens"), Path(folder, "calibration.toml"), secrets.token_urlsafe()
        tokens.write_text(f"soak:{token}\n")
        calibration.write_text("temperature = 0.85\n")
        config = EngineConfig(
            calibration_file=str(calibration),
            job_deadline_seconds=_PATIENCE_SECONDS,
            # full within minutes, so that what still grows then is no cache
            prefix_store_bytes=2**27,
            chat_cache_bytes=2**26,
        )
        engine = Engine(config)
        async with served(engine, config, token_file=str(tokens)) as app:
            soaked = Soak(f"127.0.0.1:{app.port}", app.http_port, token)
            reloading = asyncio.create_task(_reload(app, soaked, tokens, calibration, token))
            await _round(soaked, callers, 0.2)  # buffers, kernels, pools
            start = await bare(engine)
            rows = await _minutes(soaked, engine, callers, minutes)
            reloading.cancel()
            end = await bare(engine)
    print(_table(rows))
    return _judged(soaked.counts, rows, start, end)


async def _round(soaked: Soak, callers: int, minutes: float) -> None:
    end = time.monotonic() + 60 * minutes
    await asyncio.gather(*(soaked.call(number, end) for number in range(callers)))


async def _minutes(soaked: Soak, engine: Engine, callers: int, minutes: float) -> list[dict[str, float]]:
    running = asyncio.create_task(_round(soaked, callers, minutes))
    rows: list[dict[str, float]] = []
    while not running.done():
        before = Counter(soaked.counts)
        await asyncio.wait([running], timeout=60)
        held = await standing(engine)
        rows.append(_row(soaked.counts - before, held))
        say("  ".join(f"{name} {value:g}" for name, value in rows[-1].items()))
    await running
    return rows


def _row(done: Counter[str], held: Standing) -> dict[str, float]:
    held_numbers = {
        "arrays_mib": held.arrays_bytes >> 20,
        "memory_mib": held.resident_bytes >> 20,
        "files": held.files,
        "threads": held.threads,
    }
    return {name: held_numbers.get(name, done[name]) for name in _COLUMNS}


def _table(rows: list[dict[str, float]]) -> str:
    lines = [["minute", *_COLUMNS], ["---"] * (len(_COLUMNS) + 1)]
    lines += [[str(number), *(f"{value:g}" for value in row.values())] for number, row in enumerate(rows, 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _judged(counts: Counter[str], rows: list[dict[str, float]], start: Standing, end: Standing) -> int:
    """Says what was left behind; 1 for a failure, a difference or growth."""
    early, late = rows[len(rows) // 5], rows[-1]
    arrays, memory = end.arrays_bytes / start.arrays_bytes, late["memory_mib"] / max(1, early["memory_mib"])
    files, threads = end.files - start.files, end.threads - start.threads
    print(f"\nall: {', '.join(f'{counts[name]:,} {name}' for name in (*_DEEDS, 'reloads', 'wrong', 'failed'))}")
    print(f"with nothing kept, end over start: arrays {arrays:.4f}, files {files:+d}, threads {threads:+d}")
    print(f"resident memory, last minute over the first fifth's: {memory:.3f}")
    grown = arrays > _ARRAYS or memory > _RESIDENT or files > _FILES or threads > _THREADS
    return int(grown or counts["wrong"] > 0 or counts["failed"] > 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument("--callers", type=int, default=12, help="how many at once (default 12)")
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # a broken calibration is an error in the log, each time
    sys.exit(asyncio.run(soak(given.minutes, given.callers)))


if __name__ == "__main__":
    main()

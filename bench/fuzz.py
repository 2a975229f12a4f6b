"""An attack on both doors of one real server: `python -m bench.fuzz [--count N] [--seed S]`.

A real engine on a tiny random model serves in this process; hostile requests go to it over raw HTTP connections and raw
gRPC calls, several at once. It ends at the first reply that says that the server failed, at a request that is not
answered in time, at an error in the log, and at a sound decision, asked every 500 cases, whose bits are others than at
first; at the end it tells what was answered and how much memory was left behind. Every case follows from the seed and
its number: `--first NUMBER --count 1` sends that one alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio

from letterwise.v1 import decision_pb2 as pb
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine

from .leftovers import Standing, bare
from .lineup import say
from .mutant_messages import GrpcCase, grpc_case
from .mutant_requests import HttpCase, http_case
from .raw_http import Connection, Reply, TornOff
from .serving import served

CALLERS = 8
_BEACON_EVERY = 500
# An answer takes milliseconds; a machine that others use may stand still for long.
_CASE_SECONDS = 60.0
# Small, so that what is too large costs little.
_MESSAGE_BYTES = 2**18
# Of the callers, those who leave before their answer.
_LEAVE = 0.02
_STATUSES = frozenset({200, 400, 401, 404, 405, 408, 413, 415, 422, 431, 503})
_CODES = frozenset({"OK", "INVALID_ARGUMENT", "OUT_OF_RANGE", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"})
_BEACON = {
    "state": "The lamp came late and its box was torn.",
    "questions": {
        "angry": {"type": "noul", "instructions": "Is the customer angry?"},
        "team": {"type": "choice", "instructions": "Who?", "criteria": {"billing": "money", "delivery": "parcels"}},
    },
}
# After the first fifth of 200,000: about a byte of arrays per case, and what one small object per case would take.
_ARRAYS_GROWTH_BYTES, _RESIDENT_GROWTH = 160_000, 1.25
_FIFTHS = 5


class Broken(Exception):
    """The server did what it must never do; the message tells which case it was and what came."""


@dataclass
class Counts:
    """What the cases were answered with."""

    http: Counter[str] = field(default_factory=Counter)
    grpc: Counter[str] = field(default_factory=Counter)
    beacons: int = 0
    slowest_seconds: float = 0.0


class Attack:
    """Cases by number against one server. `errors`: what the server has logged as its own failure."""

    def __init__(self, http_port: int, grpc_port: int, seed: int) -> None:
        self.counts = Counts()
        self.errors: list[str] = []
        self._waited: dict[int, float] = {}  # number → since when
        self._http_port, self._target, self._seed = http_port, f"127.0.0.1:{grpc_port}", seed
        self._beacons: dict[str, Any] = {}

    async def run(self, numbers: range, callers: int = CALLERS) -> None:
        """Sends these cases, `callers` at a time. Raises Broken."""
        waiting = iter(numbers)
        tasks = [asyncio.ensure_future(self._caller(waiting)) for _ in range(callers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _caller(self, waiting: Any) -> None:
        async with grpc.aio.insecure_channel(self._target, options=_UNBOUND) as channel:
            with contextlib.closing(Connection(self._http_port)) as http:
                for number in waiting:
                    if number % _BEACON_EVERY == 0:
                        await self._beacon(http, channel)
                    await self._case(number, http, channel)

    async def _case(self, number: int, http: Connection, channel: grpc.aio.Channel) -> None:
        draw, self._waited[number] = Random(f"{self._seed}:{number}"), time.perf_counter()
        try:
            async with asyncio.timeout(_CASE_SECONDS):
                if number % 2:
                    told = await self._by_grpc(draw, channel)
                    self.counts.grpc[told] += 1
                else:
                    told = await self._by_http(draw, http)
                    self.counts.http[told] += 1
        except TimeoutError:
            raise Broken(f"case {number}: no answer in {_CASE_SECONDS:g} s; {self._beside(number)}") from None
        except Broken as broken:
            raise Broken(f"case {number}: {broken}") from None
        if self.errors:
            raise Broken(f"case {number}, or one beside it: the log has {self.errors[0]}")
        self.counts.slowest_seconds = max(self.counts.slowest_seconds, time.perf_counter() - self._waited.pop(number))

    def _beside(self, number: int) -> str:
        """Whether the server stood still for all, or for one."""
        now = time.perf_counter()
        others = {other: round(now - since, 1) for other, since in self._waited.items() if other != number}
        return f"the others wait (seconds by case) {others}, none before {self.counts.slowest_seconds:.1f}"

    async def _by_http(self, draw: Random, http: Connection) -> str:
        case = http_case(draw)
        if draw.random() < _LEAVE:
            await http.leave(case.data, draw.random() * 0.01)
            return "left"
        try:
            reply = await http.ask(case.method, case.data, last=not case.whole)
        except TornOff:
            http.close()
            if case.whole:
                raise Broken(f"the connection ended without a reply to {case.data[:1000]!r}") from None
            return "closed"
        if not case.whole:
            http.close()
        _check_reply(case, reply)
        return str(reply.status)

    async def _by_grpc(self, draw: Random, channel: grpc.aio.Channel) -> str:
        case = grpc_case(draw)
        leaves = draw.random() < _LEAVE
        code = await _called(channel, case, draw.random() * 0.01 if leaves else None)
        if leaves and code in ("CANCELLED", "DEADLINE_EXCEEDED"):
            return "left"
        if code not in _CODES:
            raise Broken(f"{code} to {case.path} {case.metadata} {case.message[:1000].hex()}")
        return code

    async def _beacon(self, http: Connection, channel: grpc.aio.Channel) -> None:
        """A sound decision by both doors, whose answers are those of the first time."""
        body = json.dumps(_BEACON).encode()
        head = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        call: Any = channel.unary_unary("/letterwise.v1.DecisionService/Decide")
        try:
            async with asyncio.timeout(_CASE_SECONDS):
                reply = await http.ask("POST", head + body)
                by_grpc = pb.DecideResponse.FromString(await call(_beacon_message().SerializeToString()))
        except TimeoutError:
            raise Broken(f"a sound decision had no answer in {_CASE_SECONDS:g} s; {self._beside(-1)}") from None
        by_http = json.loads(reply.body).get("answers")
        answers = {"http": by_http, "grpc": [answer.SerializeToString() for answer in by_grpc.answers]}
        if not by_http or answers != (self._beacons or answers):
            raise Broken(f"a sound decision was disturbed: {reply.status}, {answers} after {self._beacons}")
        self._beacons = answers
        self.counts.beacons += 1


_UNBOUND = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def _called(channel: Any, case: GrpcCase, timeout: float | None) -> str:
    try:
        if case.streams:
            async for _ in channel.unary_stream(case.path)(case.message, metadata=case.metadata, timeout=timeout):
                pass
        else:
            await channel.unary_unary(case.path)(case.message, metadata=case.metadata, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def _check_reply(case: HttpCase, reply: Reply) -> None:
    """A refusal of a sound framing is JSON with the status in it."""
    fine = reply.status in _STATUSES
    if fine and case.whole and reply.status >= 400 and case.method != "HEAD":
        try:
            fine = json.loads(reply.body)["error"]["code"] == reply.status
        except (ValueError, KeyError, TypeError):
            fine = False
    if not fine:
        raise Broken(f"{reply.status} {reply.body[:300]!r} to {case.data[:1000]!r}")


def _beacon_message() -> pb.DecideRequest:
    options = [pb.Option(name="billing", description=pb.Value(text="money")), pb.Option(name="delivery")]
    return pb.DecideRequest(
        state=pb.Value(text=str(_BEACON["state"])),
        questions=[
            pb.Question(id="angry", instructions=pb.Value(text="Is the customer angry?"), noul=pb.Noul()),
            pb.Question(id="team", instructions=pb.Value(text="Who?"), choice=pb.Choice(options=options)),
        ],
    )


class _Errors(logging.Handler):
    """Keeps what the service logs as its own failure."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._kept.append(f"{record.name}: {record.getMessage()} {cause!r}")


@contextlib.asynccontextmanager
async def attacked(engine: Any, config: EngineConfig, seed: int) -> AsyncIterator[Attack]:
    """A warm server around the engine, and an attack on it that hears what its log and its loop say."""
    async with served(engine, config, max_message_bytes=_MESSAGE_BYTES, drain_seconds=5.0) as app:
        attack = Attack(app.http_port, app.port, seed)
        handler = _Errors(attack.errors)
        logging.getLogger().addHandler(handler)
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: attack.errors.append(f"{context['message']} {context.get('exception')!r}")
        )
        try:
            yield attack
        finally:
            logging.getLogger().removeHandler(handler)


def engine_config(model: Path) -> EngineConfig:
    """Small bounds: what is within them is soon read, and what is past them soon refused."""
    return EngineConfig(
        model=str(model),
        check_store_when_idle=True,
        decision_tokens=5_000,
        chat_max_tokens=4,
        prefix_store_bytes=2**25,
        chat_cache_bytes=2**23,
    )


async def fuzz(numbers: range, seed: int) -> int:
    """The exit code: 1 when something broke, or grew."""
    from tests.tiny import tiny_folder

    with tempfile.TemporaryDirectory() as folder:
        config = engine_config(tiny_folder(Path(folder), max_position_embeddings=2048))
        engine = Engine(config)
        async with attacked(engine, config, seed) as attack:
            began = time.perf_counter()
            try:
                left = await _in_fifths(attack, engine, numbers)
            except Broken as broken:
                say(f"broken: {broken}")
                return 1
    _print(attack.counts, time.perf_counter() - began)
    return _judged(left)


async def _in_fifths(attack: Attack, engine: Engine, numbers: range) -> list[Standing]:
    left = []
    for fifth in range(_FIFTHS):
        part = numbers[len(numbers) * fifth // _FIFTHS : len(numbers) * (fifth + 1) // _FIFTHS]
        await attack.run(part)
        left.append(await bare(engine))
        arrays, memory = left[-1].arrays_bytes / 2**20, left[-1].resident_bytes >> 20
        say(f"{part.stop} cases: arrays {arrays:.2f} MiB, memory {memory} MiB, {left[-1].files} open files")
    return left


def _print(counts: Counts, seconds: float) -> None:
    for door, told in (("http", counts.http), ("grpc", counts.grpc)):
        print(f"{door:<34}{told.total():>14,}")
        for name, number in told.most_common():
            print(f"    {name:<30}{number:>14,}")
    print(f"{'sound decisions with the same bits':<34}{counts.beacons:>14,}")
    print(f"{'slowest case (seconds)':<34}{counts.slowest_seconds:>14.2f}")
    print(f"{'all (seconds)':<34}{seconds:>14.0f}")


def _judged(left: list[Standing]) -> int:
    """Says how much there is at the end beside the first fifth's; 1 when it has grown."""
    arrays = left[-1].arrays_bytes - left[0].arrays_bytes
    resident = left[-1].resident_bytes / max(1, left[0].resident_bytes)
    print(f"{'arrays, growth (bytes)':<34}{arrays:>14,}")
    print(f"{'resident memory, end over start':<34}{resident:>14.3f}")
    return int(arrays > _ARRAYS_GROWTH_BYTES or resident > _RESIDENT_GROWTH)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="cases, half by each door (default 200000)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other cases (default 1)")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the first case (default 0)")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    sys.exit(asyncio.run(fuzz(range(given.first, given.first + given.count), given.seed)))


if __name__ == "__main__":
    main()

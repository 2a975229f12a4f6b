"""A crowd of callers through the whole service, a third of whom vanish at a random moment.

A real server and real clients on one event loop, decisions and chats of mixed sizes. What must hold afterwards is
counted: answers that differ from cold ones, callers who stayed and were not answered, and what was left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

from letterwise import AsyncClient, Choice, Noul, Score
from letterwise import Decision as Reply
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine

from . import workload
from .claims import Numbers
from .leftovers import bare, forget
from .serving import served

_VANISH, _CHATS = 1 / 3, 1 / 8
_STATES = 24
_QUESTIONS: dict[str, Any] = {
    "money": Noul("Does any customer in the log ask for the money back?"),
    "team": Choice("Which team should take over?", ["billing", "delivery", "returns", "technical help"]),
    "urgent": Score("How urgent is the case?", ["it can wait", "this week", "today"]),
    "damage": Noul("Does the log speak of damage?"),
    "person": Noul("Should a person look at this today?"),
}
# Longer than any call of the crowd may wait behind the others.
_PATIENCE_SECONDS = 900.0


@dataclass
class _Counts:
    """What became of the callers."""

    asked: int = 0
    vanished: int = 0
    answered: int = 0
    chats: int = 0
    unanswered: int = 0
    answers: dict[tuple[int, int, int], list[Reply]] = field(default_factory=dict)


def vanishing(callers: int, seconds: int) -> Numbers:
    """`callers` at once for so many seconds; each asks again as soon as it has its answer, or comes back."""
    return asyncio.run(_vanishing(callers, seconds))


async def _vanishing(callers: int, seconds: int) -> Numbers:
    config = EngineConfig(job_deadline_seconds=_PATIENCE_SECONDS)
    engine, counts = Engine(config), _Counts()
    async with served(engine, config, http_port=0) as app:
        target = f"127.0.0.1:{app.port}"
        await _round(target, counts, 4, 5.0)  # buffers, kernels, pools
        before = await bare(engine)
        await _round(target, counts, callers, float(seconds))
        after = await bare(engine)
        wrong, compared = await _compare(target, engine, counts)
        left = len(engine._queue) + len(engine._line)
        await asyncio.to_thread(engine.check_store)
    return {
        "callers": callers,
        "seconds": seconds,
        "asked": counts.asked,
        "vanished": counts.vanished,
        "answered": counts.answered,
        "chats": counts.chats,
        "unanswered": counts.unanswered,
        "compared": compared,
        "wrong": wrong,
        "left_running": left,
        "arrays_growth": after.arrays_bytes / before.arrays_bytes,
    }


async def _round(target: str, counts: _Counts, callers: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    await asyncio.gather(*(_caller(target, counts, random.Random(number), end) for number in range(callers)))


async def _caller(target: str, counts: _Counts, draw: random.Random, end: float) -> None:
    while time.monotonic() < end:
        counts.asked += 1
        call = _chat(target, draw) if draw.random() < _CHATS else _decide(target, counts, draw)
        task = asyncio.create_task(call)
        if draw.random() < _VANISH:
            await asyncio.wait([task], timeout=draw.expovariate(1 / 2))
            counts.vanished += not task.done()
            task.cancel()  # closes its connection on the way out, whatever was under way
        try:
            counts.chats += await task
            counts.answered += 1
        except asyncio.CancelledError:
            pass
        except Exception as error:
            counts.unanswered += 1
            print(f"a caller who stayed was not answered: {error!r}", flush=True)


async def _chat(target: str, draw: random.Random) -> int:
    async with AsyncClient(target, timeout_seconds=_PATIENCE_SECONDS) as client:
        stream = client.chat(f"Tell me about lighthouse {draw.randrange(100)}.", max_tokens=draw.randrange(4, 24))
        async with contextlib.aclosing(stream) as events:
            async for _ in events:
                pass
    return 1


async def _decide(target: str, counts: _Counts, draw: random.Random) -> int:
    case = (draw.randrange(_STATES), draw.choice([1, 2, 4, 12]), draw.randrange(1, len(_QUESTIONS) + 1))
    async with AsyncClient(target, timeout_seconds=_PATIENCE_SECONDS) as client:
        counts.answers.setdefault(case, []).append(await _ask(client, case))
    return 0


async def _ask(client: AsyncClient, case: tuple[int, int, int]) -> Reply:
    seed, entries, questions = case
    return await client.decide(workload.state(90_000 + seed, entries), dict(list(_QUESTIONS.items())[:questions]))


async def _compare(target: str, engine: Engine, counts: _Counts, most: int = 40) -> tuple[int, int]:
    """Some of the cases asked again, each on an empty store: answers that are not those, and how many were held."""
    wrong = compared = 0
    cases = random.Random(1).sample(sorted(counts.answers), min(most, len(counts.answers)))
    async with AsyncClient(target, timeout_seconds=_PATIENCE_SECONDS) as client:
        for case in cases:
            await forget(engine)
            cold = await _ask(client, case)
            wrong += sum(one.answers != cold.answers for one in counts.answers[case])
            compared += len(counts.answers[case])
    return wrong, compared

"""One engine under real traffic: `python -m bench traffic`.

Chat beside decisions, four decisions at once, the service's own time, and a crowd of callers of whom a third vanish.
One claim, or all with smaller sizes, printed and not kept: `python -m bench.traffic [NAME …] [--quick]`. Both sides of
every ratio are measured in the same run of the same engine, on the embedded model.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from letterwise_service.engine.events import ChatEvent, ChatFinished, ChatText, Failed
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.reader import Work
from letterwise_service.engine.thread import Engine
from letterwise_service.method.chat import ChatMessage, ChatRequest

from . import crowd, workload
from .claims import Bench, Claim, Numbers, Waiting, embedded, on_engine

_SEEDS = itertools.count(70_000)
CHATS = 8
QUESTIONS = 20


class Chatter:
    """A chat that keeps the times at which its tokens came."""

    def __init__(self, engine: Engine, number: int, tokens: int) -> None:
        self.times: list[float] = []
        self._ended = threading.Event()
        self._failed: Exception | None = None
        asked = ChatMessage("user", f"Story {number}: tell me everything about a lighthouse and its keeper.")
        permit = engine.admit_chat(ChatRequest((asked,), tokens, temperature=1.0, seed=number))
        self._row = engine.submit_chat(permit, self._hear)

    def _hear(self, event: ChatEvent) -> None:
        if isinstance(event, ChatText):
            self.times.append(time.perf_counter())
        if isinstance(event, Failed):
            self._failed = event.error
        if isinstance(event, ChatFinished | Failed):
            self._ended.set()

    def stop(self) -> None:
        self._row.cancel()

    def wait(self) -> None:
        self._ended.wait()
        if self._failed is not None:
            raise self._failed

    def gaps(self, start: float = 0.0, end: float = float("inf")) -> list[float]:
        """Seconds between two tokens, of those that came within the times."""
        return [b - a for a, b in itertools.pairwise(self.times) if start <= a and b <= end]


class Deciding:
    """Decisions of twenty questions on new states, one after the other, until it is stopped: the seconds of each."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: list[float] = []
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._decide, daemon=True)
        self._thread.start()

    def _decide(self) -> None:
        while not self._stop.is_set():
            self.seconds.append(decide(self._engine))

    def stop(self) -> None:
        """After the one that is running."""
        self._stop.set()
        self._thread.join()


def decide(engine: Engine) -> float:
    """The seconds of one decision of twenty questions on a state that nobody has read."""
    waiting, permit = Waiting(), engine.admit(workload.request(next(_SEEDS), QUESTIONS))
    started = time.perf_counter()
    engine.submit(permit, waiting)
    waiting.completed()
    return time.perf_counter() - started


def chat_gap(engine: Engine, tokens: int, decisions: int, rounds: int) -> Numbers:
    """Eight chats alone, and beside decisions: the 95th percentile of the time between two tokens; rounds' medians."""
    decide(engine)
    told = [_chat_round(engine, tokens, decisions) for _ in range(rounds)]
    return {"rounds": rounds, **{name: statistics.median(one[name] for one in told) for name in told[0]}}


def _chat_round(engine: Engine, tokens: int, decisions: int) -> Numbers:
    forward = one_forward(engine)
    speed_alone = statistics.median(decide(engine) for _ in range(decisions))
    alone = gaps_of([Chatter(engine, number, tokens) for number in range(CHATS)])
    with chatting(engine) as chats:
        deciding = Deciding(engine)
        began = time.perf_counter()
        while len(deciding.seconds) < decisions:
            time.sleep(0.1)
        ended = time.perf_counter()
        deciding.stop()
    beside = [gap for chat in chats for gap in chat.gaps(began, ended)]
    return {
        "chats": CHATS,
        "gaps": len(beside),
        "forward_seconds": forward,
        "alone_p95_seconds": percentile(alone, 0.95),
        "beside_p50_seconds": percentile(beside, 0.5),
        "beside_p95_seconds": percentile(beside, 0.95),
        "chat_gap_over_alone_plus_forward": percentile(beside, 0.95) / (percentile(alone, 0.95) + forward),
        "decision_alone_seconds": speed_alone,
        "decision_beside_seconds": statistics.median(deciding.seconds),
        "decision_speed_beside_chat": speed_alone / statistics.median(deciding.seconds),
    }


@contextmanager
def chatting(engine: Engine) -> Iterator[list[Chatter]]:
    """Eight chats generate all the while: one that ends is followed by another. All of them, in the end."""
    chats = [Chatter(engine, number, 1024) for number in range(CHATS)]
    stopped = threading.Event()

    def follow(place: int) -> None:
        chat = chats[place]
        while not stopped.is_set():
            if chat._ended.wait(0.05) and not stopped.is_set():
                chat = Chatter(engine, len(chats), 1024)
                chats.append(chat)
        chat.stop()

    followers = [threading.Thread(target=follow, args=(place,)) for place in range(CHATS)]
    for follower in followers:
        follower.start()
    while any(len(chat.times) < 5 for chat in chats[:CHATS]):
        time.sleep(0.05)
    try:
        yield chats
    finally:
        stopped.set()
        for follower in followers:
            follower.join()


def gaps_of(chats: Sequence[Chatter]) -> list[float]:
    """The gaps while all of them generated: prompts are read one by one, and chats end one by one."""
    for chat in chats:
        chat.wait()
    start, end = max(chat.times[0] for chat in chats), min(chat.times[-1] for chat in chats)
    return [gap for chat in chats for gap in chat.gaps(start, end)]


def one_forward(engine: Engine, repeats: int = 9) -> float:
    """The median seconds of one forward of 128 tokens over a state of 700, at the pace that chat leaves: one a step."""
    return statistics.median(on_engine(engine, partial(_timed_forwards, engine, repeats)))


def _timed_forwards(engine: Engine, repeats: int) -> list[float]:
    assert engine._served is not None
    reader = engine._served.reader
    reader.pace.forwards = 1
    permit = engine.admit(workload.request(next(_SEEDS), 1))
    cache = reader.new_cache()
    for _ in reader.extend(permit.prefix, cache, 0, Work()):
        pass
    cache, taken = reader.sealed(cache), []
    tails = [tuple(10 + (i * j) % 500 for j in range(FORWARD_TOKENS // 2)) for i in (3, 7)]
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in reader.read(permit.prefix, cache, tails, Work()):
            pass
        taken.append(time.perf_counter() - began)
    return taken


def fairness(engine: Engine, rounds: int) -> Numbers:
    """Four decisions of the same size at once: the last one's time over the first one's, the median of the rounds."""
    ratios = []
    for _ in range(rounds):
        taken = [0.0] * 4
        permits = [engine.admit(workload.request(next(_SEEDS), QUESTIONS)) for _ in taken]
        waiting = [Waiting() for _ in taken]
        started = time.perf_counter()
        for permit, one in zip(permits, waiting, strict=True):
            engine.submit(permit, one)
        threads = [threading.Thread(target=_note, args=(taken, i, one, started)) for i, one in enumerate(waiting)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ratios.append(max(taken) / min(taken))
    return {"rounds": rounds, "fairness_4": statistics.median(ratios)}


def _note(taken: list[float], place: int, waiting: Waiting, started: float) -> None:
    waiting.completed()
    taken[place] = time.perf_counter() - started


def overhead(calls: int) -> Numbers:
    """One kept question through the whole service: a client's time less the engine's own, of each call."""
    from letterwise import Client, Noul

    program = Path(sys.executable).with_name("letterwise-service")
    command = [program, "serve", "--model", "demo", "--port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        target = server.stdout.readline().rsplit(" ", 1)[-1].strip()
        state, asked = workload.state(next(_SEEDS)), {"late": Noul("Does the first customer complain?")}
        walls, engines = [], []
        with Client(target) as client:
            client.decide(state, asked)
            for _ in range(calls):
                began = time.perf_counter()
                told = client.decide(state, asked).diagnostics
                walls.append(time.perf_counter() - began)
                engines.append(told.total_seconds)
        server.terminate()
    over = [1000 * (wall - own) for wall, own in zip(walls, engines, strict=True)]
    return {
        "calls": calls,
        "wall_p50_milliseconds": 1000 * statistics.median(walls),
        "engine_p50_milliseconds": 1000 * statistics.median(engines),
        "service_overhead_ms": statistics.median(over),
        "service_overhead_p95_ms": percentile(over, 0.95),
    }


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _claim(function: Callable[..., Numbers], full: Sequence[int], quick: Sequence[int]) -> Claim:
    return partial(embedded, function, *full), partial(embedded, function, *quick)


CLAIMS: dict[str, Claim] = {
    "chat": _claim(chat_gap, (60, 3, 5), (40, 2, 1)),
    "fairness": _claim(fairness, (5,), (1,)),
    "overhead": (partial(overhead, 100), partial(overhead, 20)),
    "crowd": (partial(crowd.vanishing, 64, 60), partial(crowd.vanishing, 16, 10)),
}
# key → (claim, its number)
KEYS = {
    "chat_gap_over_alone_plus_forward": ("chat", "chat_gap_over_alone_plus_forward"),
    "decision_speed_beside_chat": ("chat", "decision_speed_beside_chat"),
    "fairness_4": ("fairness", "fairness_4"),
    "service_overhead_ms": ("overhead", "service_overhead_ms"),
    "crowd_wrong": ("crowd", "wrong"),
    "crowd_unanswered": ("crowd", "unanswered"),
    "crowd_arrays_growth": ("crowd", "arrays_growth"),
}


BENCH = Bench("traffic", CLAIMS, KEYS)
run = BENCH.run

if __name__ == "__main__":
    BENCH.main()

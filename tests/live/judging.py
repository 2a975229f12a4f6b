"""The judge process as the tests see it: readings by prompt, computed in the background and kept in memory.

Two processes for the session, fed in the order of asking: a plain forward keeps one core busy. A decision driven by
them is the answer that plain full forwards give, through the same method. Any thread of the tests may ask.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from letterwise_service.method.answers import Answer, Skipped
from letterwise_service.method.decision import Decision, Reading
from letterwise_service.method.request import DecisionRequest

STYLE = "plain"
SCRIPT = Path(__file__).with_name("judge.py")


@dataclass(frozen=True)
class Judged:
    """One plain forward: the prompt's ids, 52 letter scores, and log Σ exp over the vocabulary."""

    ids: tuple[int, ...]
    letters: tuple[float, ...]
    log_total: float

    def reading(self, letters: int) -> Reading:
        """As the method takes it."""
        listed = self.letters[:letters]
        return Reading(listed, sum(math.exp(score - self.log_total) for score in listed))


class Judge:
    """Asks the judge processes, each prompt once."""

    def __init__(self, model: Path, processes: int = 2) -> None:
        self._asked: dict[str, Future[Judged]] = {}
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._workers = [_Worker(model, self._queue, self._asked) for _ in range(processes)]

    def message(self, text: str, *, continued: bool = False) -> Future[Judged]:
        """The forward over the chat prompt of a user message; one of many on a long state may be `continued`."""
        return self._ask({"message": text, "continued": True} if continued else {"message": text})

    def ids(self, ids: Sequence[int]) -> Future[Judged]:
        """The forward over these ids."""
        return self._ask({"ids": list(ids)})

    def expect(self, request: DecisionRequest, *, whole: int | None = None) -> None:
        """Starts on the passes of a request that are known already; their readings will be asked for later.

        whole: how many are read from their first token; the others are continued.
        """
        for index, one in enumerate(Decision(request, style=STYLE).ready()):
            self.message(one.text, continued=whole is not None and index >= whole)

    def decide(self, request: DecisionRequest) -> dict[str, Answer | Skipped]:
        """The request's outcomes from plain forwards, by question id."""
        decision = Decision(request, style=STYLE)
        outcomes = decision.open()
        while passes := decision.ready():
            waiting = [self.message(one.text) for one in passes]
            for one, judged in zip(passes, waiting, strict=True):
                outcomes += decision.take(one, judged.result().reading(one.letters))
        return {outcome.id: outcome for outcome in outcomes}

    def close(self) -> None:
        """Ends the processes, whatever they are computing."""
        for _ in self._workers:
            self._queue.put(None)
        for worker in self._workers:
            worker.close()

    def _ask(self, asked: dict[str, Any]) -> Future[Judged]:
        line = json.dumps(asked)
        if line not in self._asked:
            self._asked[line] = Future()
            self._queue.put(line)
        return self._asked[line]


class _Worker:
    """One judge process, and the thread that feeds it."""

    def __init__(self, model: Path, queue: SimpleQueue[str | None], asked: dict[str, Future[Judged]]) -> None:
        command = [sys.executable, str(SCRIPT), str(model)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._feed, args=(queue, asked), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._process.kill()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def _feed(self, queue: SimpleQueue[str | None], asked: dict[str, Future[Judged]]) -> None:
        while (line := queue.get()) is not None:
            try:
                asked[line].set_result(self._answer(line))
            except (OSError, ValueError) as problem:  # the process has ended; its own stderr says why
                asked[line].set_exception(RuntimeError(f"the judge gave no answer: {problem}"))

    def _answer(self, line: str) -> Judged:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        return Judged(tuple(told["ids"]), tuple(told["letters"]), told["log_total"])

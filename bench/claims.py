"""Claims: functions that measure something whole and give named numbers, in full or with smaller sizes.

What the benches of the store and of traffic share: the engine that serves, the caller that waits, and how numbers are
named, kept and printed. Knows nothing of what is claimed.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from letterwise_service.config import EngineConfig
from letterwise_service.engine.events import Answered, Completed, Event, Failed
from letterwise_service.engine.thread import Engine

from . import report
from .lineup import Results, say

T = TypeVar("T")
Numbers: TypeAlias = dict[str, float]
# (with its sizes in full, with smaller ones)
Claim: TypeAlias = tuple[Callable[[], Numbers], Callable[[], Numbers]]
# A new state of 5,000 tokens on a busy processor may take longer than a decision is given by default.
_PATIENCE_SECONDS = 3600.0


class Waiting:
    """A caller: keeps what it is told, and waits for the end."""

    def __init__(self, watch: Any = None) -> None:
        self.answers: dict[str, Any] = {}
        self.last: Event | None = None
        self._watch = watch
        self._ended = threading.Event()

    def __call__(self, event: Event) -> None:
        if self._watch is not None:
            self._watch()
        if isinstance(event, Answered):
            self.answers[event.answer.id] = event.answer
        if isinstance(event, Completed | Failed):
            self.last = event
            self._ended.set()

    def completed(self) -> Completed:
        self._ended.wait()
        if not isinstance(self.last, Completed):
            raise RuntimeError(f"a decision failed: {self.last}")
        return self.last


@contextmanager
def serving(**settings: Any) -> Iterator[Engine]:
    engine = Engine(EngineConfig(**settings))
    engine.start()
    engine.wait_ready()
    try:
        yield engine
    finally:
        engine.close()


def embedded(claim: Callable[..., Numbers], *sizes: int) -> Numbers:
    with serving(model="demo", job_deadline_seconds=_PATIENCE_SECONDS) as engine:
        return claim(engine, *sizes)


def on_engine(engine: Engine, call: Callable[[], T]) -> T:
    """What `call` gives, made by the engine thread between two steps."""
    told = engine._errands.add(call)
    engine._queue.nudge()
    return told.result()


@dataclass(frozen=True)
class Bench:
    """Claims by name, and the keys of results.json: key → claim and its number."""

    name: str
    claims: Mapping[str, Claim]
    keys: Mapping[str, tuple[str, str]]

    def run(self, rounds: int) -> Results:
        """Every claim once, in full: each repeats what it times by itself. `rounds` is not used."""
        found: Results = {}
        for name, (full, _) in self.claims.items():
            say(f"{self.name}: {name}")
            found |= self.results(name, full())
        return found

    def results(self, claim: str, numbers: Numbers) -> Results:
        """The keys of one claim, and all its numbers beside them."""
        keys = {key: numbers[number] for key, (owner, number) in self.keys.items() if owner == claim}
        return {**keys, f"{self.name}_claim_{claim}": numbers}

    def main(self) -> None:
        """A command for single claims: printed, and kept if that is wanted."""
        parser = argparse.ArgumentParser(prog=f"python -m bench.{self.name}", description="Single claims, printed.")
        parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(self.claims)}; all without one")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--quick", action="store_true", help="smaller sizes")
        how.add_argument("--keep", action="store_true", help="put them into results.json and the README")
        given = parser.parse_args()
        if unknown := [name for name in given.names if name not in self.claims]:
            parser.error(f"no claim is named {unknown[0]}; there are {', '.join(self.claims)}")
        for name in given.names or self.claims:
            full, quick = self.claims[name]
            numbers = quick() if given.quick else full()
            print(_table(name, numbers), flush=True)
            if given.keep:
                report.update(self.results(name, numbers))


def _table(name: str, numbers: Numbers) -> str:
    rows = (
        f"    {key:<34}{value:>14,.4g}" if isinstance(value, float) else f"    {key:<34}{value:>14,}"
        for key, value in numbers.items()
    )
    return "\n".join([name, *rows])

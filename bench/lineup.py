"""Contenders in one run: started together, asked in turn, one computing at a time.

A machine's speed drifts, so nothing here is compared across runs: every round asks every contender, each round begins
with another one, and what is reported are ratios of medians over the rounds. In the pauses between cases none of ours
computes, so what the processor does then is others' work, which a run reports: threads that wait for each other suffer
most from it.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from .contenders import Contender, Entry, Missing

Results: TypeAlias = dict[str, Any]

_PAUSE_SECONDS = 0.1


class Lineup:
    """The contenders that are there. `missing`: name → reason, of those that are not."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.busy: list[float] = []  # share of the processor that others took, a value per pause
        self._there: dict[str, Contender] = {}

    @property
    def names(self) -> list[str]:
        return list(self._there)

    def turns(self, round_number: int) -> list[str]:
        """The contenders' names in this round's order."""
        shift = round_number % max(1, len(self.names))
        return [*self.names[shift:], *self.names[:shift]]

    def ask(self, name: str, case: dict[str, Any]) -> dict[str, Any] | None:
        """The reply, or None when the contender is missing or goes missing now."""
        if name not in self._there:
            return None
        self._pause()
        try:
            return self._there[name].ask(case)
        except Missing as reason:
            self._lose(name, reason)
            return None

    def close(self) -> None:
        for contender in self._there.values():
            contender.close()

    @property
    def others_share(self) -> float | None:
        """Median share of the processor that others took between cases; None where the system does not say."""
        return statistics.median(self.busy) if self.busy else None

    def _pause(self) -> None:
        time.sleep(_PAUSE_SECONDS)  # threads of the one before that still spin come to rest
        before = _processor_ticks()
        time.sleep(_PAUSE_SECONDS)
        after = _processor_ticks()
        if before and after and sum(after) > sum(before):
            idle = sum(after[3:5]) - sum(before[3:5])  # idle and waiting for a disk
            self.busy.append(1 - idle / (sum(after) - sum(before)))

    def start(self, name: str, entry: Callable[[], Entry]) -> None:
        """Start a contender; one that cannot be started is missing."""
        say(f"starting {name} …")
        try:
            self._there[name] = Contender(entry())
            self.about[name] = self._there[name].about
        except (Missing, OSError) as reason:
            self.missing[name] = str(reason)
            say(f"{name} is missing: {reason}")

    def _lose(self, name: str, reason: Missing) -> None:
        self.missing[name] = str(reason)
        self._there.pop(name).close()
        say(f"{name} is missing from now on: {reason}")


@contextlib.contextmanager
def lineup(entries: Mapping[str, Callable[[], Entry]]) -> Iterator[Lineup]:
    """The contenders, ended with the block."""
    started = Lineup()
    try:
        for name, entry in entries.items():
            started.start(name, entry)
        yield started
    finally:
        started.close()


def ratio(results: Results, key: str, over: Sequence[float], under: Sequence[float], times: float = 1.0) -> None:
    """`key`: median of `over` ÷ median of `under`, × `times`; beside it both medians. Nothing when one is empty."""
    if over and under:
        medians = [statistics.median(over), statistics.median(under)]
        results[key] = medians[0] / medians[1] * times
        results[f"{key}_medians"] = medians


def _processor_ticks() -> list[int]:
    """What the processor did since the start: user, nice, system, idle, iowait, irq, softirq, steal (proc(5))."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return []
    return [int(ticks) for ticks in first.split()[1:9]]


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(text, file=sys.stderr, flush=True)

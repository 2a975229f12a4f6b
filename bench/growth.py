"""The table of growth: a decision on a new state with ever more questions, a longer state, more options.

A step is explained when its time grows as its computed tokens do; attention over a long state grows faster, which the
operations of the products say.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from .contenders import Entry
from .lineup import Results, lineup, say

_WORKER = "letterwise_engine"
# log entries for states of about 100, 400, 1,500, 3,000 and 6,000 tokens
AXES: dict[str, list[tuple[int, dict[str, int]]]] = {
    "questions": [(count, {"count": count}) for count in (1, 2, 4, 8, 16, 32, 64)],
    "state entries": [(entries, {"count": 1, "entries": entries}) for entries in (3, 14, 52, 106, 212)],
    "options": [(options, {"options": options}) for options in (2, 10, 26, 52, 104, 300)],
}


def run(rounds: int) -> Results:
    """`growth`: a row per step, with seconds, computed tokens (padding included) and operations.

    Half the rounds, since each is long.
    """
    taken: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    played = max(1, rounds // 2)
    with lineup({_WORKER: lambda: Entry(_WORKER, Path(sys.executable), _WORKER)}) as ours:
        for number in range(played):
            say(f"growth: round {number + 1} of {played}")
            for seed, (axis, value, case) in enumerate(_steps(), 90_000 + 1000 * number):
                reply = ours.ask(_WORKER, {**case, "seed": seed})
                if reply is None:
                    raise SystemExit(f"{_WORKER}: {ours.missing[_WORKER]}")
                taken[axis, value].append(reply)
    rows = [
        {
            "axis": axis,
            "value": value,
            **{
                measure: statistics.median(reply[measure] for reply in replies)
                for measure in ("seconds", "computed_tokens", "operations")
            },
        }
        for (axis, value), replies in taken.items()
    ]
    return {"growth": rows, "others_share_growth": ours.others_share}


def _steps() -> list[tuple[str, int, dict[str, int]]]:
    return [(axis, value, case) for axis, steps in AXES.items() for value, case in steps]

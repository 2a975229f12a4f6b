"""The tables of our own reader: tails grouped or one by one, a decision beside its products, sizes of a forward, parts.

Each measure and what it is compared with take turns in one run.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from . import workload
from .contenders import Entry
from .lineup import Lineup, Results, lineup, ratio, say

SIZES = (64, 128, 256)
_COUNT = 20
_READER = "letterwise_reader"
_ENGINE = "letterwise_engine"


def grouping(rounds: int) -> Results:
    """20 tails over a kept prefix, as the reader groups them ÷ one per forward."""
    grouped, single = [], []
    with _ours(_READER) as ours:
        for number in range(rounds):
            say(f"grouping: round {number + 1} of {rounds}")
            case = {"measure": "tails", **_ids(number)}
            grouped.append(_seconds(ours, _READER, case))
            single.append(_seconds(ours, _READER, {**case, "rows_limit": 1}))
        found: Results = {"others_share_grouping": ours.others_share}
    ratio(found, "grouped_over_single_20", grouped, single)
    return found


def gemm(rounds: int) -> Results:
    """A decision of 20 questions through the engine ÷ its matrix products alone, on a new state and on a kept one."""
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    with _ours(_ENGINE, _READER) as ours:
        for number in range(rounds):
            say(f"gemm: round {number + 1} of {rounds}")
            for state in ("cold", "kept"):
                case = {"seed": _seed(number), "count": _COUNT, "kept": state == "kept", **_ids(number)}
                taken["decision", state].append(_seconds(ours, _ENGINE, case))
                taken["gemm", state].append(_seconds(ours, _READER, {**case, "measure": "gemm"}))
        found: Results = {"others_share_gemm": ours.others_share}
    ratio(found, "decision_over_gemm", taken["decision", "cold"], taken["gemm", "cold"])
    ratio(found, "decision_over_gemm_kept", taken["decision", "kept"], taken["gemm", "kept"])
    return found


def forward_sizes(rounds: int) -> Results:
    """Prefix, longest step and 20 tails with forwards of 64, 128 and 256 tokens: medians of seconds."""
    taken: dict[int, list[dict[str, float]]] = defaultdict(list)
    with _ours(_READER) as ours:
        for number in range(rounds):
            say(f"forward sizes: round {number + 1} of {rounds}")
            for size in SIZES:
                case = {"measure": "sizes", "forward_tokens": size, **_ids(number)}
                taken[size].append(_reply(ours, _READER, case))
    rows = [
        {"forward_tokens": size, **{part: statistics.median(one[part] for one in some) for part in some[0]}}
        for size, some in taken.items()
    ]
    return {"forward_sizes": rows, "others_share_forward_sizes": ours.others_share}


def profile(rounds: int) -> Results:
    """Milliseconds of one tails forward of 2 x 64 tokens and of its parts alone: medians."""
    found: dict[str, list[float]] = defaultdict(list)
    with _ours(_READER) as ours:
        for number in range(rounds):
            say(f"profile: round {number + 1} of {rounds}")
            case = {"measure": "profile", "rows": 2, "width": 64, **_ids(number)}
            for part, value in _reply(ours, _READER, case)["milliseconds"].items():
                found[part].append(value)
    rows = [{"part": part, "milliseconds": statistics.median(some)} for part, some in found.items()]
    return {"profile": rows, "others_share_profile": ours.others_share}


def _ours(*modules: str) -> AbstractContextManager[Lineup]:
    """Workers of our own, each under its module's name."""
    return lineup({name: partial(Entry, name, Path(sys.executable), name) for name in modules})


def _seed(number: int) -> int:
    return 50_000 + number


def _ids(number: int) -> dict[str, Any]:
    made = workload.ids(workload.request(_seed(number), _COUNT), _tokens(), "plain")
    return {"prefix": list(made.prefix), "tails": [list(tail) for tail in made.tails]}


_made: list[Any] = []


def _tokens() -> Any:
    if not _made:
        _made.append(workload.demo_tokens())
    return _made[0]


def _reply(ours: Lineup, name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Our own worker's reply; that it is missing ends the table."""
    reply = ours.ask(name, case)
    if reply is None:
        raise SystemExit(f"{name}: {ours.missing[name]}")
    return reply


def _seconds(ours: Lineup, name: str, case: dict[str, Any]) -> float:
    return float(_reply(ours, name, case)["seconds"])

"""`python -m bench [NAME …] [--rounds N]`: run the tables, print them, keep them in results.json and the README."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable

from . import decisions, doors, growth, inside, report, store, traffic
from .lineup import Results, say

# name → (what runs it, the tables of the report that show it, the keys that it owns)
BENCHES: dict[str, tuple[Callable[[int], Results], tuple[str, ...], tuple[str, ...]]] = {
    "decisions": (
        decisions.run,
        ("goals", "decisions"),
        ("about_", "missing_", "five_", *(f"{name}_" for name in (*decisions.PEERS, "ours"))),
    ),
    "grouping": (inside.grouping, ("inside",), ("grouped_",)),
    "gemm": (inside.gemm, ("inside",), ("decision_over_gemm",)),
    "growth": (growth.run, ("growth",), ("growth",)),
    "forward_sizes": (inside.forward_sizes, ("forward_sizes",), ("forward_sizes",)),
    "profile": (inside.profile, ("profile",), ("profile",)),
    "store": (store.run, ("goals", "store"), (*store.KEYS, "store_claim_")),
    "traffic": (traffic.run, ("goals", "traffic"), (*traffic.KEYS, "traffic_claim_")),
    "doors": (doors.run, ("goals", "doors"), (*doors.KEYS, "doors_claim_")),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHES)}; all without one")
    parser.add_argument("--rounds", type=int, default=5, help="rounds whose medians count (default 5)")
    parser.add_argument("--render", action="store_true", help="run nothing; make README and plot from results.json")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHES]:
        parser.error(f"no bench is named {unknown[0]}; there are {', '.join(BENCHES)}")
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    if given.render:
        print(report.tables(report.update({}), report.TABLES))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`, where contenders are ended
    for name in given.names or BENCHES:
        run, tables, keys = BENCHES[name]
        started = time.monotonic()
        results = report.update({**run(given.rounds), f"rounds_{name}": given.rounds}, gone=keys)
        say(f"{name}: {time.monotonic() - started:.0f} seconds")
        print(f"\n{report.tables(results, tables)}\n", flush=True)


if __name__ == "__main__":
    main()

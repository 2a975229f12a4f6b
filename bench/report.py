"""`results.json` and the tables made of it: what a run prints, and the generated part of the README.

Tables are text made of the results alone, so that the README can be compared with the numbers at any time.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .chart import svg
from .decisions import COUNTS, PEERS, STATES
from .lineup import Results

HERE = Path(__file__).resolve().parent
RESULTS, README, CHART = HERE / "results.json", HERE / "README.md", HERE / "growth.svg"
BEGIN, END = "<!-- made by python -m bench: begin -->", "<!-- made by python -m bench: end -->"
# More than this share of the processor taken by others, and threads that wait for each other lose out of proportion.
_BUSY = 0.1
# key → (what is measured, the goal as a comparison)
GOALS: dict[str, tuple[str, str]] = {
    "five_over_one_per_token_cold": ("5 questions on a new state ÷ 1 question, per computed token", "≤ 1.05"),
    "grouped_over_single_20": ("20 tails grouped ÷ one per forward", "≤ 0.90"),
    "naive_over_ours_20_cold": ("20 questions on a new state, mlx-lm naive ÷ ours", "≥ 12"),
    "naive_over_ours_20_kept": ("20 questions on a kept state, mlx-lm naive ÷ ours", "≥ 20"),
    **{
        f"llama_over_ours_{count}_{state}": (
            f"{count} question{'s' * (count > 1)}, {state}, llama.cpp ÷ ours",
            "≥ 1.3" if count == 20 else "≥ 1.0",
        )
        for count in COUNTS
        for state in STATES
    },
    "decision_over_gemm": ("20 questions on a new state ÷ its matrix products alone", "≤ 1.6"),
    "kept_over_cold_1": ("1 question on a kept state of 700 tokens ÷ on a new one", "≤ 0.30"),
    "kept_over_cold_1_5000": ("the same with 5,000 tokens", "≤ 0.12"),
    "prefix_lookup_milliseconds": ("finding a kept prefix of 700 tokens, in milliseconds", "≤ 2"),
    "growing_tokens_ratio": ("40 states of 60 tokens more each: prefix tokens computed ÷ needed", "≤ 1.35"),
    "callers_200_times_computed": ("200 callers on one new state: times its prefix is computed", "≤ 1"),
    "chat_gap_over_alone_plus_forward": (
        "p95 between tokens of 8 chats beside decisions ÷ (alone + one forward)",
        "≤ 1.0",
    ),
    "decision_speed_beside_chat": ("a decision's speed beside 8 chats ÷ alone", "≥ 0.45"),
    "fairness_4": ("four decisions at once, the last one's time ÷ the first one's", "≤ 1.3"),
    "service_overhead_ms": ("a kept question through the whole service less the engine's time, ms", "≤ 3"),
    "crowd_wrong": ("64 callers, a third of them vanish: answers that differ from cold ones", "≤ 0"),
    "crowd_unanswered": ("callers who stayed and were not answered", "≤ 0"),
    "crowd_arrays_growth": ("bytes of all arrays after them ÷ before", "≤ 1.05"),
    "http_over_grpc_ms": ("a kept decision by HTTP less the same by gRPC, ms at p50", "≤ 2"),
    "drain_lost": ("SIGTERM under 64 callers: decisions neither answered nor refused", "≤ 0"),
    "drain_exit_seconds": ("the same: seconds until the server has ended", "≤ 10"),
}
_STEPS = ("seconds", "computed_tokens", "operations")
_NAMES = {
    "naive": "mlx-lm, every prompt whole",
    "stock_prefix": "mlx-lm, prefix kept, tails one by one",
    "llama": "llama.cpp, the file's 4 bits",
    "llama_float32": "llama.cpp, float32",
    "torch_float32": "torch, float32",
    "torch_bfloat16": "torch, bfloat16",
    "ours": "ours",
}


def update(found: Results, *, gone: Iterable[str] = ()) -> Results:
    """The stored results with a run's put in; keys that start with a word of `gone` and did not come again go."""
    stored = stored_results()
    kept = {key: value for key, value in stored.items() if not key.startswith(tuple(gone))}
    results = {**kept, **found, **_machine()}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if "growth" in results:
        CHART.write_text(svg(results["growth"]))
    _write_readme(results)
    return results


def stored_results() -> Results:
    found: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def tables(results: Results, names: Iterable[str]) -> str:
    """The named tables, those that have results."""
    return "\n\n".join(text for name in names if (text := TABLES[name](results)))


def generated(text: str) -> str:
    """What stands between a README's markers."""
    return text.split(BEGIN, 1)[1].split(END, 1)[0].strip()


def _write_readme(results: Results) -> None:
    text = README.read_text()
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    README.write_text(f"{before}{BEGIN}\n\n{tables(results, TABLES)}\n\n{END}{after}")


def _machine() -> Results:
    return {
        "machine_processor": _processor(),
        "machine_cores": os.cpu_count(),
        "machine_system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def _processor() -> str:
    """The processor's name and the instructions that matter to matrix products."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in facts.get("flags", "").split()]
    return " ".join([facts.get("model name", platform.machine()), *([f"({', '.join(flags)})"] if flags else [])])


def goals(results: Results) -> str:
    rows = [
        [words, f"`{key}`", _number(results[key]), goal, _verdict(results[key], goal)]
        for key, (words, goal) in GOALS.items()
        if key in results
    ]
    text = _table("### Goals", ["measure", "key", "ratio", "goal", ""], rows)
    shared = max((results[key] or 0.0 for key in results if key.startswith("others_share_")), default=0.0)
    warning = f"\n\n**Others took up to {shared:.0%} of the processor meanwhile: these numbers do not count.**"
    return text + (warning if text and shared > _BUSY else "")


def decisions(results: Results) -> str:
    columns = [(count, state) for count in COUNTS for state in STATES]
    rows = [
        [
            _NAMES[peer],
            *(_number(results.get(f"{peer}_over_ours_{count}_{state}")) for count, state in columns),
            _small(results.get(f"{peer}_score_error")),
        ]
        for peer in PEERS
        if f"{peer}_over_ours_1_cold" in results
    ]
    if not rows:
        return ""
    rows.append(["ours, seconds", *(_ours(results, count, state) for count, state in columns), _own_error(results)])
    missing = [
        f"- {_NAMES.get(key.removeprefix('missing_'), key)}: missing, {value}"
        for key, value in results.items()
        if key.startswith("missing_")
    ]
    heads = ["time ÷ ours", *(f"{count} {state}" for count, state in columns), "score error"]
    title = "### Decisions: 1, 5 and 20 questions on a 700-token state, new (cold) or kept"
    return "\n".join([_table(title, heads, rows), *(["", *missing] if missing else []), "", *_five(results)])


def _five(results: Results) -> list[str]:
    if "five_over_one_cold" not in results:
        return []
    plain, per_token = results["five_over_one_cold"], results["five_over_one_per_token_cold"]
    return [f"Five questions on a new state take {plain:.2f} times one question; per computed token {per_token:.2f}."]


def _ours(results: Results, count: int, state: str) -> str:
    seconds = results.get(f"ours_{count}_{state}_seconds")
    return "–" if seconds is None else f"{seconds:.2f} s"


def _own_error(results: Results) -> str:
    return _small(results.get("ours_score_error"))


def inside(results: Results) -> str:
    rows = [
        [f"`{key}`", _number(results[key]), *(f"{value:.2f} s" for value in results[f"{key}_medians"])]
        for key in ("grouped_over_single_20", "decision_over_gemm", "decision_over_gemm_kept")
        if key in results
    ]
    return _table("### Ours from inside", ["key", "ratio", "over", "under"], rows)


def growth(results: Results) -> str:
    rows: list[list[str]] = []
    before: dict[str, Any] | None = None
    for row in results["growth"] if "rounds_growth" in results else ():
        step = before if before and before["axis"] == row["axis"] else None
        rows.append(
            [
                row["axis"],
                f"{row['value']:,}",
                f"{row['computed_tokens']:,.0f}",
                f"{row['seconds']:.2f} s",
                *([f"{_step(row, step, key):.2f}" for key in _STEPS] if step else [""] * len(_STEPS)),
                f"{_step(row, step, 'seconds') / _step(row, step, _STEPS[-1]):.2f}" if step else "",
            ]
        )
        before = row
    heads = ["axis", "value", "computed tokens", "time", "time ×", "tokens ×", "operations ×", "time × ÷ operations ×"]
    text = _table("### Growth of a decision on a new state (× : times the step before)", heads, rows)
    return f"{text}\n\n![Seconds of a decision against its computed tokens](growth.svg)" if text else ""


def _step(row: dict[str, Any], before: dict[str, Any], key: str) -> float:
    return float(row[key] / before[key])


def forward_sizes(results: Results) -> str:
    rows = [
        [
            str(row["forward_tokens"]),
            *(f"{row[key]:.3f} s" for key in ("prefix_seconds", "longest_seconds", "tails_seconds")),
            f"{row['forwards']:.0f}",
        ]
        for row in results.get("forward_sizes", ())
    ]
    heads = ["tokens in a forward", "prefix of 700", "longest step", "20 tails", "forwards of the tails"]
    return _table("### Sizes of a forward", heads, rows)


def profile(results: Results) -> str:
    parts = results.get("profile", ())
    whole = next((row["milliseconds"] for row in parts if row["part"] == "whole"), 0.0)
    rows = [[row["part"], f"{row['milliseconds']:.0f}", f"{row['milliseconds'] / whole:.0%}"] for row in parts]
    title = "### Where a tails forward's time goes (2 tails of 64 tokens on 700, one stream, parts timed alone)"
    return _table(title, ["part", "ms", "share"], rows)


def store(results: Results) -> str:
    return _claims("### Kept prefixes", "store", results)


def traffic(results: Results) -> str:
    return _claims("### Traffic", "traffic", results)


def doors(results: Results) -> str:
    return _claims("### Doors", "doors", results)


def _claims(title: str, bench: str, results: Results) -> str:
    """Every number of every claim, a claim per row."""
    start = f"{bench}_claim_"
    rows = [
        [
            f"`{key.removeprefix(start)}`",
            ", ".join(f"{name.replace('_', ' ')} {_any(value)}" for name, value in numbers.items()),
        ]
        for key, numbers in results.items()
        if key.startswith(start)
    ]
    return _table(title, ["claim", "numbers"], rows)


def _any(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _about(results: Results) -> str:
    facts = [f"- {key.removeprefix('machine_')}: {results[key]}" for key in results if key.startswith("machine_")]
    about = [
        f"- {key.removeprefix('about_').replace('_', ' ')}: {results[key]}"
        for key in results
        if key.startswith("about_")
    ]
    return "\n".join(["### Machine and contenders", "", *facts, *_runs(results), *about]) if facts else ""


def _runs(results: Results) -> list[str]:
    """How each table was run: rounds, and how busy others kept the processor between cases."""
    lines = []
    for key, rounds in results.items():
        if key.startswith("rounds_"):
            share = results.get(f"others_share_{key.removeprefix('rounds_')}")
            busy = "" if share is None else f", others took {share:.0%} of the processor"
            note = " (**a shared machine: do not rely on these ratios**)" if (share or 0) > _BUSY else ""
            lines.append(f"- {key.removeprefix('rounds_')}: {rounds} rounds{busy}{note}")
    return lines


TABLES: dict[str, Callable[[Results], str]] = {
    "goals": goals,
    "decisions": decisions,
    "inside": inside,
    "growth": growth,
    "forward_sizes": forward_sizes,
    "profile": profile,
    "store": store,
    "traffic": traffic,
    "doors": doors,
    "about": _about,
}


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join([title, "", *lines])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _small(value: float | None) -> str:
    return "–" if value is None else f"{value:.0e}" if value < 0.01 else f"{value:.2f}"


def _verdict(value: float, goal: str) -> str:
    sign, limit = goal.split()
    reached = value <= float(limit) if sign == "≤" else value >= float(limit)
    return "reached" if reached else "not reached"

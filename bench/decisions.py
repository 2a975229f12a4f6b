"""The table of decisions: 1, 5 and 20 questions on a new state and on a kept one, ours and the peers.

Also says how far each contender's letter scores are from mlx-lm's float32 full forward, the mean of a question's 52
taken off first, which no probability depends on.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import peers, workload
from .lineup import Lineup, Results, lineup, ratio, say

COUNTS = (1, 5, 20)
STATES = ("cold", "kept")
PEERS = ("naive", "stock_prefix", "llama", "llama_float32", "torch_float32", "torch_bfloat16")
# The slow ones take part in every second or fourth round only; they are compared with ours of the same rounds.
_EVERY = {"naive": 2, "stock_prefix": 2, "llama_float32": 4}

# (contender, questions, state) → round → seconds
Seconds: TypeAlias = defaultdict[tuple[str, int, str], dict[int, float]]


def run(rounds: int) -> Results:
    """Keys of the table; a contender that is not there has `missing_NAME` and no numbers."""
    tokens = workload.demo_tokens()
    with lineup(peers.entries()) as contenders:
        table = _Table(contenders, tokens)
        for number in range(rounds):
            say(f"decisions: round {number + 1} of {rounds}")
            table.play(number)
        return table.results()


class _Table:
    def __init__(self, contenders: Lineup, tokens: Any) -> None:
        self._contenders = contenders
        self._tokens = tokens
        self._seconds: Seconds = defaultdict(dict)
        self._computed: dict[int, int] = {}
        self._errors: dict[str, float] = defaultdict(float)

    def play(self, number: int) -> None:
        """A round: every contender whose turn it is reads the same new states, the shortest decision first."""
        cases = {count: self._case(number, count) for count in COUNTS}
        playing = [name for name in self._contenders.turns(number) if number % _EVERY.get(name, 1) == 0]
        letters: dict[str, list[list[float]] | None] = {}
        for name in playing:
            say(f"  {name}")
            read = self._naive if name == "naive" else self._both
            letters[name] = read(name, number, cases)
        judge = letters.get("naive")
        for name, found in letters.items():
            if judge and found:
                self._errors[name] = max(self._errors[name], distance(found, judge))

    def _case(self, number: int, count: int) -> dict[str, Any]:
        seed = 1000 * (number + 1) + count
        made = workload.ids(workload.request(seed, count), self._tokens, "plain")
        return {
            "seed": seed,
            "count": count,
            "prefix": list(made.prefix),
            "tails": [list(tail) for tail in made.tails],
            "letter_ids": list(self._tokens.letter_ids),
        }

    def _naive(self, name: str, number: int, cases: dict[int, dict[str, Any]]) -> list[list[float]] | None:
        """Each prompt whole, one after the other, so that a run of 20 has the time of 1 and of 5 within it."""
        reply = self._contenders.ask(name, cases[max(COUNTS)])
        if reply is None:
            return None
        for count in COUNTS:
            for state in STATES:  # nothing is kept, so both cost the same
                self._seconds[name, count, state][number] = reply["marks"][count - 1]
        letters: list[list[float]] = reply["letters"]
        return letters

    def _both(self, name: str, number: int, cases: dict[int, dict[str, Any]]) -> list[list[float]] | None:
        """Every number of questions on its new state, then on the same one kept; the scores of the last."""
        letters: list[list[float]] | None = None
        for count in COUNTS:
            for state in STATES:
                reply = self._contenders.ask(name, {**cases[count], "kept": state == "kept"})
                if reply is None:
                    return None
                self._seconds[name, count, state][number] = reply["seconds"]
                letters = reply["letters"]
                if name == "ours" and state == "cold":
                    self._computed[count] = reply["computed_tokens"]
        return letters

    def results(self) -> Results:
        found: Results = {}
        for count, state in itertools.product(COUNTS, STATES):
            ours = self._seconds["ours", count, state]
            if ours:
                found[f"ours_{count}_{state}_seconds"] = statistics.median(ours.values())
            for peer in PEERS:
                theirs = self._seconds[peer, count, state]
                rounds = sorted(theirs.keys() & ours.keys())
                key = f"{peer}_over_ours_{count}_{state}"
                ratio(found, key, [theirs[number] for number in rounds], [ours[number] for number in rounds])
        self._growth_of_five(found)
        found.update({f"{name}_score_error": error for name, error in self._errors.items()})
        found.update({f"missing_{name}": reason for name, reason in self._contenders.missing.items()})
        found.update(_described(self._contenders))
        found["others_share_decisions"] = self._contenders.others_share
        return found

    def _growth_of_five(self, found: Results) -> None:
        one, five = (list(self._seconds["ours", count, "cold"].values()) for count in (1, 5))
        if one and five:
            ratio(found, "five_over_one_cold", five, one)
            ratio(found, "five_over_one_per_token_cold", five, one, self._computed[1] / self._computed[5])


def distance(found: Sequence[Sequence[float]], judge: Sequence[Sequence[float]]) -> float:
    """The largest difference of two score lists, question by question, where both have one."""
    return max(
        abs(a - b)
        for own, right in zip(found, judge, strict=False)
        for a, b in zip(_centred(own), _centred(right), strict=True)
    )


def _centred(scores: Sequence[float]) -> list[float]:
    mean = sum(scores) / len(scores)
    return [score - mean for score in scores]


def _described(contenders: Lineup) -> Results:
    """What each contender said of itself, one key a fact."""
    return {
        f"about_{name}_{fact}": value
        for name, about in contenders.about.items()
        for fact, value in about.items()
        if not isinstance(value, dict)
    } | {
        f"about_{name}_tried_seconds": ", ".join(f"{setting}: {value:.2f}" for setting, value in about["tried"].items())
        for name, about in contenders.about.items()
        if "tried" in about
    }

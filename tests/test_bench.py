"""The bench: every contender reads the same ids, and the README says what results.json says. No clock is asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import chart, decisions, doors, growth, lineup, report, store, traffic, workload
from bench.__main__ import BENCHES
from bench.contenders import Contender, Entry, Missing
from letterwise_service.engine.models import embedded
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.method.decision import Decision
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Score

from .tiny import byte_tokenizer

CLAIMED = (store.BENCH, traffic.BENCH, doors.BENCH)


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(byte_tokenizer())


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return report.stored_results()


def test_workload_ids_are_the_prompts_of_the_method(tokens: PromptTokens) -> None:
    """Prefix and tail together are the ids of the pass's own message, for every question."""
    asked = workload.request(3, 20)
    made = workload.ids(asked, tokens, "plain")
    texts = [one.text for one in Decision(asked, style="plain").ready()]
    assert [made.prefix + tail for tail in made.tails] == [one.ids for one in tokens.messages(texts)]


def test_workload_asks_the_same_questions_first_whatever_their_number() -> None:
    """One question is the first of five, and five are the first of twenty: one run times all three."""
    assert workload.questions(5) == workload.questions(20)[:5]
    assert len({question.id for question in workload.questions(64)}) == 64


def test_workload_mixes_the_three_kinds() -> None:
    """Five questions hold every kind."""
    assert {type(question) for question in workload.questions(5)} == {Noul, Choice, Score}


def test_workload_states_differ_from_the_start(tokens: PromptTokens) -> None:
    """No two seeds share more of their prefix than the header: a new state is new to every contender."""
    one, other = (workload.ids(workload.request(seed, 1), tokens, "plain").prefix for seed in (1001, 2001))
    shared = next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert shared < len(one) / 10


def test_workload_is_as_long_as_the_readme_says() -> None:
    """About 700 tokens of state and tails of 45 to 90 on the embedded model's own tokenizer, all within a forward."""
    tokens = workload.demo_tokens()
    for seed in (1020, 2020):
        made = workload.ids(workload.request(seed, 20), tokens, "plain")
        assert 650 <= len(made.prefix) <= 750
        assert 45 <= min(map(len, made.tails)) <= max(map(len, made.tails)) <= 90 < FORWARD_TOKENS
    assert embedded.FILE_NAME.endswith(".gguf")


def test_workload_choice_has_as_many_options_as_asked() -> None:
    """Names are unique up to 300 of them."""
    asked = DecisionRequest(workload.state(1), (workload.one_choice(300),))
    assert len({option.name for option in asked.questions[0].options}) == 300  # type: ignore[union-attr]


def test_contender_that_cannot_load_is_missing_with_its_reason() -> None:
    """Its last line of stderr is the reason, no folder in it, and the line-up goes on without it."""
    entry = Entry("llama", Path(sys.executable), "no_such_worker")
    with pytest.raises(Missing, match="no_such_worker"):
        Contender(entry)
    with lineup.lineup({"llama": lambda: entry}) as contenders:
        assert contenders.names == []
        assert "no_such_worker" in contenders.missing["llama"]
        assert "/" not in contenders.missing["llama"]
        assert contenders.ask("llama", {}) is None


def test_turns_begin_with_another_contender_each_round() -> None:
    """Nobody is always first or always after the same one's pause."""
    contenders = lineup.Lineup()
    contenders._there = dict.fromkeys(("a", "b", "c"))  # type: ignore[arg-type]
    assert [contenders.turns(number) for number in range(3)] == [list("abc"), list("bca"), list("cab")]


def test_ratio_is_of_the_medians_that_stand_beside_it() -> None:
    """The key is the quotient of its `_medians`, and nothing is written where one side is missing."""
    found: dict[str, Any] = {}
    lineup.ratio(found, "a_over_b", [9.0, 2.0, 4.0], [1.0, 2.0, 8.0])
    lineup.ratio(found, "c_over_b", [], [1.0])
    assert found == {"a_over_b": 2.0, "a_over_b_medians": [4.0, 2.0]}


class _Scripted(lineup.Lineup):
    """Contenders whose replies are arithmetic: a question costs a second, reading a new state ten; one goes missing."""

    @property
    def names(self) -> list[str]:
        return ["ours", *(peer for peer in decisions.PEERS if peer not in self.missing)]

    def ask(self, name: str, case: dict[str, Any]) -> dict[str, Any] | None:
        if name == "torch_bfloat16":
            self.missing[name] = "it ended with status 1"
            return None
        tails, prefix = len(case["tails"]), 0.0 if case.get("kept") else 10.0
        times = 1.0 if name == "ours" else 3.0
        return {
            "seconds": times * (prefix + tails),
            "marks": [12.0 * (number + 1) for number in range(tails)],
            "letters": [[0.5 * (name == "llama" and letter == 0) for letter in range(52)]] * tails,
            "computed_tokens": 100 * (7 + tails),
        }


def test_decisions_table_is_ratios_of_what_the_contenders_took(tokens: PromptTokens) -> None:
    """Naive's one run gives its times of 1, 5 and 20; a missing peer has a reason and no numbers."""
    table = decisions._Table(_Scripted(), tokens)
    for number in range(5):
        table.play(number)
    found = table.results()
    assert found["naive_over_ours_20_cold_medians"] == [240.0, 30.0]
    assert found["naive_over_ours_1_kept"] == 12.0
    assert found["llama_over_ours_5_kept"] == 3.0
    assert found["five_over_one_cold"] == pytest.approx(15 / 11)
    assert found["five_over_one_per_token_cold"] == pytest.approx(15 / 11 * 8 / 12)
    assert found["llama_score_error"] == pytest.approx(0.5 * 51 / 52)
    assert found["missing_torch_bfloat16"] == "it ended with status 1"
    assert not any(key.startswith("torch_bfloat16_over") for key in found)
    text = report.tables({**found, "rounds_decisions": 5}, report.TABLES)
    assert "torch, bfloat16: missing, it ended with status 1" in text
    assert (
        "| 20 questions on a new state, mlx-lm naive ÷ ours | `naive_over_ours_20_cold` | 8.00 | ≥ 12 | not reached |"
        in text
    )


def test_distance_ignores_what_no_probability_depends_on() -> None:
    """A constant added to all scores of a question is no error; one score's move is."""
    assert decisions.distance([[1.0, 2.0, 3.0]], [[11.0, 12.0, 13.0]]) == 0
    assert decisions.distance([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.3]]) == pytest.approx(0.2)


def test_chart_draws_every_step() -> None:
    """The plot is XML with a dot per row and a line per axis."""
    rows = [
        {"axis": axis, "value": value, "seconds": value / 10, "computed_tokens": 100 * value}
        for axis, steps in growth.AXES.items()
        for value, _ in steps
    ]
    tree = ElementTree.fromstring(chart.svg(rows))
    drawn = [element.tag.split("}")[1] for element in tree.iter()]
    assert drawn.count("circle") == len(rows)
    assert drawn.count("polyline") == len(growth.AXES)


def test_results_have_every_key_of_every_table_that_was_run(results: dict[str, Any]) -> None:
    """A table that was run (`rounds_NAME`) has its goals' ratios, each with its two medians, or its rows."""
    run = {name for name in BENCHES if f"rounds_{name}" in results}
    assert run
    owners = {"grouped_over_single_20": "grouping", "decision_over_gemm": "gemm"}
    claimed = {key: (bench, *place) for bench in CLAIMED for key, place in bench.keys.items()}
    for key in (key for key in claimed if f"{claimed[key][0].name}_claim_{claimed[key][1]}" in results):
        bench, claim, number = claimed[key]
        assert results[key] == results[f"{bench.name}_claim_{claim}"][number], key
    for key in (key for key in report.GOALS if key not in claimed and owners.get(key, "decisions") in run):
        peer = key.partition("_over_ours")[0]
        assert f"missing_{peer}" in results or len(results[f"{key}_medians"]) == 2, key
    if "growth" in run:
        assert {row["axis"] for row in results["growth"]} == set(growth.AXES)
    if "forward_sizes" in run:
        assert [row["forward_tokens"] for row in results["forward_sizes"]] == [64, 128, 256]
    if "profile" in run:
        assert results["profile"][0]["part"] == "whole"


def test_results_are_the_quotients_of_their_medians(results: dict[str, Any]) -> None:
    """Every ratio follows from what stands beside it, the one per token apart."""
    ratios = [key for key in results if f"{key}_medians" in results and key != "five_over_one_per_token_cold"]
    assert ratios
    for key in ratios:
        over, under = results[f"{key}_medians"]
        assert results[key] == pytest.approx(over / under), key


def test_results_name_every_peer_or_why_it_is_missing(results: dict[str, Any]) -> None:
    """Once the decisions were run, a peer has its numbers, or a reason."""
    for peer in decisions.PEERS if "rounds_decisions" in results else ():
        assert f"{peer}_over_ours_20_cold" in results or results[f"missing_{peer}"]


def test_readme_tables_are_those_of_the_results(results: dict[str, Any]) -> None:
    """What stands between the markers is made of results.json, and so is the plot."""
    assert report.generated(report.README.read_text()) == report.tables(results, report.TABLES).strip()
    if "growth" in results:
        assert report.CHART.read_text() == chart.svg(results["growth"])


def test_readme_and_results_name_no_path(results: dict[str, Any]) -> None:
    """No folder of the machine that measured is told."""
    told = json.dumps(results) + report.README.read_text()
    assert str(Path.home()) + "/" not in told
    assert str(report.HERE.parent) not in told


def test_every_bench_is_in_the_readme() -> None:
    """Each name of the command is one of the README's commands."""
    text = report.README.read_text()
    assert all(f"python -m bench {name}" in text for name in BENCHES)

"""A whole decision: what may be read when, what follows from an answer, and what is sent at most."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from letterwise_service.errors import ReadFailed
from letterwise_service.method.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer, Skipped, in_request_order
from letterwise_service.method.decision import Decision, Pass, Reading, bound_passes, count_passes
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Question, Score
from letterwise_service.method.vectors import sha256_score

LEVELS = ("low", "same", "same", "high")


def _first(prompt: str, index: int) -> float:
    return 0.0 if index == 0 else -60.0


def _second(prompt: str, index: int) -> float:
    return 0.0 if index == 1 else -60.0


def _noul(id: str, **ask_if: tuple[str, ...]) -> Noul:
    return Noul(id, f"Is {id}?", ask_if=ask_if)


def _request(*questions: Question, **more: Any) -> DecisionRequest:
    return DecisionRequest("state", questions, **more)


def _reading(one: Pass, mass: float = 1.0) -> Reading:
    return Reading(tuple(sha256_score(one.text, letter) for letter in range(one.letters)), mass)


def _options(count: int) -> tuple[Option, ...]:
    return tuple(Option(f"o{index}", f"d{index}") for index in range(count))


def test_decision_hands_out_each_pass_once() -> None:
    """A second call gives nothing until a reading opens more."""
    decision = Decision(_request(_noul("a"), _noul("b")), style="plain")
    assert decision.open() == []
    assert [one.question_id for one in decision.ready()] == ["a", "b"]
    assert decision.ready() == []
    assert not decision.finished


def test_decision_answers_the_moment_the_last_pass_is_read() -> None:
    """The answer comes with its own last reading, not with the round's end."""
    decision = Decision(_request(_noul("a"), _noul("b"), samples=2), style="plain")
    passes = decision.ready()
    told = [[outcome.id for outcome in decision.take(one, _reading(one))] for one in passes]
    assert told == [[], ["a"], [], ["b"]]
    assert decision.finished


def test_decision_reads_winners_after_every_chunk() -> None:
    """Over 52 options: the chunks in all orders first, then one round over the winners, in as many orders."""
    decision = Decision(_request(Choice("q", "?", _options(60)), samples=2), style="bracket")
    first = decision.ready()
    assert [one.letters for one in first] == [30] * 4
    for one in first:
        assert decision.take(one, _reading(one)) == []
    final = decision.ready()
    assert [one.letters for one in final] == [2, 2]
    assert decision.take(final[0], _reading(final[0])) == []
    assert len(decision.take(final[1], _reading(final[1]))) == 1


@pytest.mark.parametrize("seed", range(5))
def test_decision_does_not_depend_on_the_order_of_reading(decide: Any, seed: int) -> None:
    """Passes read in any order give the same answers, bit for bit."""
    questions = (Choice("c", "?", _options(120)), Score("s", "?", LEVELS), _noul("n", s=("low", "1", "2", "high")))
    request = _request(*questions, samples=3)
    expected, _ = decide(request, sha256_score, mass=1.0)
    decision = Decision(request, style="bracket")
    waiting: list[Pass] = []
    outcomes: dict[str, Any] = {}
    shuffled = random.Random(seed)
    while waiting := [*waiting, *decision.ready()]:
        one = waiting.pop(shuffled.randrange(len(waiting)))
        outcomes.update({known.id: known for known in decision.take(one, _reading(one))})
    assert outcomes == expected


def test_decision_answers_equal_passes_each(decide: Any) -> None:
    """A question asked twice under two ids, and two equal orders of one question, are read and answered."""
    noul = Noul("a", "Is it?")
    request = _request(noul, Noul("b", "Is it?"), samples=3)
    outcomes, sent = decide(request, sha256_score)
    assert len(sent) == 6
    assert len({one.text for one in sent}) == 2
    assert len({one.index for one in sent}) == 6
    assert outcomes["a"].probability == outcomes["b"].probability


def test_letter_mass_is_the_mean_over_every_pass() -> None:
    """Chunks and winners count alike."""
    decision = Decision(_request(Choice("q", "?", _options(60))), style="bracket")
    masses = iter([0.2, 0.4, 0.9])
    answers = []
    while passes := decision.ready():
        for one in passes:
            answers.extend(decision.take(one, _reading(one, next(masses))))
    assert answers[0].letter_mass == pytest.approx(0.5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "reading",
    [
        Reading((0.0,), 1.0),
        Reading((0.0, 0.0, 0.0), 1.0),
        Reading((0.0, math.nan), 1.0),
        Reading((0.0, 0.0), math.nan),
    ],
)
def test_decision_fails_on_a_bad_reading(reading: Reading) -> None:
    """Scores too few, too many or not finite are an error, never an answer."""
    decision = Decision(_request(_noul("a")), style="plain")
    [one] = decision.ready()
    with pytest.raises(ReadFailed):
        decision.take(one, reading)


def test_decision_refuses_a_pass_it_does_not_wait_for() -> None:
    """A pass taken twice, or another decision's, is the driver's mistake."""
    decision = Decision(_request(_noul("a"), samples=2), style="plain")
    one = decision.ready()[0]
    decision.take(one, _reading(one))
    with pytest.raises(ValueError, match="not waited for"):
        decision.take(one, _reading(one))
    with pytest.raises(ValueError, match="not waited for"):
        decision.take(Pass("b", "?", 2), Reading((0.0, 0.0), 1.0))


def test_choice_of_one_option_is_certain(decide: Any) -> None:
    """It is read, for its letter mass, and answered with probability and confidence 1."""
    outcomes, sent = decide(_request(Choice("q", "?", _options(1))), sha256_score)
    assert len(sent) == 1
    assert outcomes["q"] == ChoiceAnswer("q", "o0", ("o0",), (1.0,), 1.0, 0.5)


def test_score_legend_keeps_levels_as_they_came(decide: Any) -> None:
    """Levels may be of any kind and may repeat."""
    levels = ("same", "same", {"k": [1]}, None, 3)
    outcomes, _ = decide(_request(Score("q", "?", levels)), sha256_score)
    assert isinstance(outcomes["q"], ScoreAnswer)
    assert outcomes["q"].legend == levels


TEAM = Choice("team", "?", (Option("red"), Option("blue")))
LEVEL = Score("level", "?", LEVELS)


@pytest.mark.parametrize(
    ("first", "score", "wanted", "was"),
    [
        (_noul("on"), _first, "yes", "yes"),
        (_noul("on"), _second, "no", "no"),
        (_noul("on"), lambda prompt, index: 0.0, "yes", "yes"),
        (TEAM, _first, "red", "red"),
        (TEAM, _second, "blue", "blue"),
        (LEVEL, _first, "low", "low"),
        (LEVEL, _second, "1", "1"),
        (LEVEL, lambda prompt, index: 0.0, "low", "low"),
        (Score("typed", "?", ({"a": "é"}, 7)), _first, '{"a": "é"}', '{"a": "é"}'),
        (Score("typed", "?", ({"a": "é"}, 7)), _second, "7", "7"),
    ],
)
def test_ask_if_asks_on_a_wanted_answer_and_skips_on_another(
    decide: Any, first: Question, score: Any, wanted: str, was: str
) -> None:
    """Yes and no, option names, and level names: a text, or an index where two levels share it."""
    asked, _ = decide(_request(_noul("then", **{first.id: ("else", wanted)}), first), score)
    assert isinstance(asked["then"], NoulAnswer)
    skipped, sent = decide(_request(_noul("then", **{first.id: ("else",)}), first), score)
    assert skipped["then"] == Skipped("then", first.id, was, ("else",))
    assert len(sent) == 1


def test_ask_if_needs_every_condition_and_names_the_first_that_fails(decide: Any) -> None:
    """Conditions are looked at in their own order."""
    questions = (_noul("a"), _noul("b"), _noul("c", b=("no",), a=("no",)), _noul("d", a=("yes",), b=("no",)))
    outcomes, _ = decide(_request(*questions), _first)
    assert outcomes["c"] == Skipped("c", "b", "yes", ("no",))
    assert outcomes["d"] == Skipped("d", "b", "yes", ("no",))


def test_ask_if_on_a_skipped_question_skips_without_an_answer(decide: Any) -> None:
    """`was` is None, all along the chain, in the same breath."""
    questions = (_noul("c", b=("yes", "no")), _noul("b", a=("no",)), _noul("a"))
    decision = Decision(_request(*questions), style="plain")
    [one] = decision.ready()
    outcomes = decision.take(one, Reading((0.0, -9.0), 1.0))
    assert [outcome.id for outcome in outcomes] == ["a", "b", "c"]
    assert outcomes[1:] == [Skipped("b", "a", "yes", ("no",)), Skipped("c", "b", None, ("yes", "no"))]
    assert decision.ready() == []
    assert decision.finished


def test_ask_if_carries_no_earlier_answer_into_the_prompt(decide: Any) -> None:
    """A later question's pass is the one that it would have alone."""
    _, staged = decide(_request(_noul("a"), _noul("b", a=("yes",))), _first)
    _, alone = decide(_request(_noul("b")), _first)
    assert staged[1].text == alone[0].text


def test_ask_if_waits_for_its_own_questions_only() -> None:
    """A question is ready when what it names is known, whatever else is still being read."""
    decision = Decision(_request(_noul("slow"), _noul("a"), _noul("b", a=("yes",))), style="plain")
    _, second = decision.ready()
    decision.take(second, Reading((0.0, -9.0), 1.0))
    assert [one.question_id for one in decision.ready()] == ["b"]


CHAIN = (_noul("c", b=("yes",)), _noul("b", a=("yes",)), _noul("a"), _noul("alone"))


@pytest.mark.parametrize(
    ("questions", "ask", "stages"),
    [
        (CHAIN, None, 3),
        (CHAIN, ("alone",), 1),
        (CHAIN, ("a", "b"), 2),
        ((_noul("a"), _noul("b", a=("yes",)), _noul("c", a=("yes",))), None, 2),
    ],
)
def test_stages_are_the_depth_of_the_asked_questions(
    questions: tuple[Question, ...], ask: tuple[str, ...] | None, stages: int
) -> None:
    """One, and one more for each link of the longest chain among those asked."""
    assert Decision(_request(*questions, ask=ask), style="plain").stages == stages


def test_ask_leaves_out_what_it_does_not_name(decide: Any) -> None:
    """A question that is not asked is neither answered nor skipped; the request's order stays."""
    outcomes, sent = decide(_request(*CHAIN, ask=("alone", "a")), _first)
    assert list(outcomes) == ["a", "alone"]
    assert [one.question_id for one in sent] == ["a", "alone"]


def test_outcomes_sort_into_the_requests_order(decide: Any) -> None:
    """Answers and skips, each in the order of the questions."""
    request = _request(_noul("d", a=("no",)), *CHAIN)
    outcomes, _ = decide(request, _first)
    answers, skips = in_request_order(request, outcomes.values())
    assert [answer.id for answer in answers] == ["c", "b", "a", "alone"]
    assert [skip.id for skip in skips] == ["d"]


def _lengths(passes: list[Pass]) -> Mapping[str, int]:
    longest: dict[str, int] = {}
    for one in passes:
        longest[one.question_id] = max(longest.get(one.question_id, 0), len(one.text.encode()))
    return longest


@pytest.mark.parametrize("style", ["plain", "bracket"])
@pytest.mark.parametrize("samples", [1, 3])
def test_bound_passes_hold_whatever_is_sent(decide: Any, style: str, samples: int) -> None:
    """No pass is longer than its question's longest bound; the count is exact when nothing is skipped."""
    uneven = tuple(Option(f"o{index}", "é" * (index * 7 % 40)) for index in range(130))
    request = _request(Choice("c", "?", uneven), _noul("n"), Score("s", "?", tuple("abc")), samples=samples)
    _, sent = decide(request, sha256_score, style=style)
    bound = list(bound_passes(request, style=style))
    assert len(sent) == count_passes(request) == samples * 6
    assert [one.letters for one in bound] == [44, 44, 42, 3, 2, 3]
    assert [one.index for one in bound] == list(range(6))
    longest = _lengths(bound)
    assert all(size <= longest[id] for id, size in _lengths(sent).items())
    final_bound = len(bound[3].text.encode())
    assert all(len(one.text.encode()) <= final_bound for one in sent if one.question_id == "c" and one.letters == 3)


def test_bound_passes_are_those_sent_when_one_order_is_read(decide: Any) -> None:
    """Without winners and skips, the bound is the very list."""
    request = _request(*CHAIN)
    _, sent = decide(request, _first, style="plain")
    assert {one.text for one in bound_passes(request, style="plain")} == {one.text for one in sent}
    assert len(bound_passes(_request(*CHAIN, ask=("a",)), style="plain")) == 1

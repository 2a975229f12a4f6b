"""The reference vectors: what the published helper sends and answers, from outside."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from letterwise_service.errors import MalformedBody
from letterwise_service.method.composition import option_orders
from letterwise_service.method.vectors import SCORE_FUNCTIONS, replay


def test_vectors_all_replay_to_twelve_digits(vectors: Any) -> None:
    """Every vector has its exact prompts, and its unrounded answers to 1e-12."""
    results = replay(vectors, tolerance=1e-12)
    assert len(results) == len(vectors["vectors"]) == 51
    assert [result for result in results if not result.passed] == []


def test_vectors_hold_prompts_and_answers_to_compare(vectors: Any) -> None:
    """The replay has something to compare in every case, so that it cannot pass by silence."""
    for vector in vectors["vectors"]:
        assert set(vector["prompts"]["per_question"]) == set(vector["answers"]) == set(vector["request"]["questions"])


def test_orders_are_the_files(vectors: Any) -> None:
    """Each listed permutation is the one that the method reads in."""
    for count, orders in vectors["orders"].items():
        assert option_orders(int(count), len(orders)) == orders


def test_score_functions_give_the_files_examples(vectors: Any) -> None:
    """The fake model scores the file's examples as documented, and knows each function that the file describes."""
    for example in vectors["score_examples"]:
        score = SCORE_FUNCTIONS[example["score_fn"]](example["prompt"], example["i"])
        assert score == pytest.approx(example["score"], abs=1e-15)
    assert set(SCORE_FUNCTIONS) == set(vectors["score_functions"])


def _one(vectors: Any) -> Any:
    document = copy.deepcopy({**vectors, "vectors": vectors["vectors"][:1]})
    return document, document["vectors"][0]


def test_replay_finds_a_changed_answer(vectors: Any) -> None:
    """An answer that is off by 2e-9 fails and is named; one off by 5e-10 passes."""
    document, vector = _one(vectors)
    vector["answers"]["angry"]["noul"] += 5e-10
    assert replay(document)[0].passed
    vector["answers"]["angry"]["noul"] += 2e-9
    assert "answers.angry.noul" in (replay(document)[0].reason or "")


def test_replay_finds_a_changed_prompt(vectors: Any) -> None:
    """A prompt that differs by a byte fails, by its text and by its hash alone."""
    document, vector = _one(vectors)
    prompt = vector["prompts"]["per_question"]["route"][0]
    prompt["text"] += " "
    assert "prompts.route[0]: the text differs" in (replay(document)[0].reason or "")
    del prompt["text"]
    assert replay(document)[0].passed
    prompt["sha256"] = "0" * 64
    assert "sha256" in (replay(document)[0].reason or "")
    del prompt["sha256"]
    assert "neither" in (replay(document)[0].reason or "")


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda v: v.update(score_fn="oracle"), "unknown score function"),
        (lambda v: v["prompts"]["per_question"]["route"].append({}), "prompts.route"),
        (lambda v: v["prompts"]["per_question"].pop("route"), "prompts"),
        (lambda v: v["prompts"].update(count=4), "expected 4"),
        (lambda v: v["answers"].pop("route"), "keys"),
        (lambda v: v["answers"]["route"].update(choice="shipping"), "answers.route.choice"),
        (lambda v: v.pop("answers"), "not in the format"),
        (lambda v: v["request"]["questions"]["route"].update(type="guess"), "refused"),
    ],
)
def test_replay_says_why_a_vector_fails(vectors: Any, break_it: Any, word: str) -> None:
    """A vector that cannot pass is a failed case with its reason, never an exception."""
    document, vector = _one(vectors)
    break_it(vector)
    [result] = replay(document)
    assert not result.passed
    assert word in (result.reason or "")


@pytest.mark.parametrize("document", [[], {}, {"format": "other"}, {"format": "openjev-letter-vectors/1"}])
def test_replay_refuses_another_document(document: Any) -> None:
    """A file that is not of the format is malformed, not an empty success."""
    with pytest.raises(MalformedBody):
        replay(document)

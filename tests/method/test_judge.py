"""The method against a judge: the same answers worked out plainly, from the body, with none of the method's code."""

from __future__ import annotations

import hashlib
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from letterwise_service.method.answers import Skipped
from letterwise_service.method.jev import answer_json, read_body

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def hashed(prompt: str, index: int) -> float:
    """A score that any change of the prompt changes."""
    return -8.0 * int.from_bytes(hashlib.sha256(f"{prompt}\0{index}".encode()).digest()[:4], "big") / 2**32


def words(value: Any) -> str:
    """A description as text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def rows(question: dict[str, Any]) -> list[tuple[str, str]]:
    """The options of a question as name and description."""
    criteria: Any = question.get("criteria")
    if question["type"] == "noul":
        criteria = criteria or {}
        yes = words(criteria.get("true")) or "The statement is true."
        return [("yes", yes), ("no", words(criteria.get("false")) or "The statement is false.")]
    if question["type"] == "choice":
        return [(name, words(text)) for name, text in criteria.items()]
    return [(str(index), words(text)) for index, text in enumerate(criteria)]


def read_list(body: dict[str, Any], question: dict[str, Any], options: list[tuple[str, str]]) -> list[float]:
    """The distribution over one list of at most 52 options, averaged over the orders."""
    state = body["state"]
    state = json.dumps(state, ensure_ascii=False) if isinstance(state, dict) else str(state)
    asked = str(question["instructions"])
    if question["type"] == "score":
        asked += " Rate along the ordered levels below (lowest first)."
    samples = body.get("samples", 1)
    result = [0.0] * len(options)
    for j in range(samples):
        order = list(range(len(options)))
        if samples > 1:
            random.Random(j).shuffle(order)
        prompt = f"State:\n{state}\n\nQuestion: {asked}\nOptions:\n"
        for letter, option in zip(LETTERS, order, strict=False):
            prompt += f"[{letter}] {options[option][0]}: {options[option][1]}\n"
        prompt += "\nAnswer with the letter of the best option only."
        powers = [math.exp(hashed(prompt, place) / 0.85) for place in range(len(order))]
        for option, power in zip(order, powers, strict=True):
            result[option] += power / sum(powers) / samples
    return result


def judge(body: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """One answer, in Jev's shape."""
    options = rows(question)
    n = len(options)
    k = math.ceil(n / 52)
    size = math.ceil(n / k)
    parts = [options[start : start + size] for start in range(0, n, size)]
    read = [read_list(body, question, part) for part in parts]
    p = read[0]
    if len(parts) > 1:
        best = [q.index(max(q)) for q in read]
        final = read_list(body, question, [part[b] for part, b in zip(parts, best, strict=True)])
        p = [f * x / q[b] for f, q, b in zip(final, read, best, strict=True) for x in q]
        p = [x / sum(p) for x in p]
    if question["type"] == "noul":
        yes = min(max(p[0], 0.0001), 0.9999)
        odds = (yes / (1 - yes)) ** (1 / 1.829074)
        return {"type": "noul", "noul": odds / (1 + odds)}
    mode = p.index(max(p))
    if question["type"] == "choice":
        named = {name: x for (name, _), x in zip(options, p, strict=True)}
        confidence = 1.0 if n == 1 else (max(p) - 1 / n) / (1 - 1 / n)
        return {"type": "choice", "choice": options[mode][0], "probabilities": named, "confidence": confidence}
    spread = sum(x * abs(i - mode) for i, x in enumerate(p))
    chance = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return {
        "type": "score",
        "score": sum(i * x for i, x in enumerate(p)),
        "legend": {str(i): level for i, level in enumerate(question["criteria"])},
        "probabilities": {str(i): x for i, x in enumerate(p)},
        "confidence": 1.0 if n == 1 else max(0.0, 1 - spread / chance),
    }


def close(one: Any, other: Any) -> bool:
    """Whether two answers agree, numbers to 1e-12."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    if isinstance(one, float):
        return bool(one == pytest.approx(other, abs=1e-12))
    return type(one) is type(other) and bool(one == other)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.none() | text | st.integers() | st.booleans() | st.lists(text, max_size=2)
nouls = st.fixed_dictionaries(
    {"type": st.just("noul"), "instructions": text},
    optional={"criteria": st.fixed_dictionaries({}, optional={"true": json_values, "false": json_values})},
)
choices = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "instructions": text,
        "criteria": st.dictionaries(text, json_values, min_size=1, max_size=8)
        | st.integers(50, 160).map(lambda n: {f"o{i}": None for i in range(n)}),
    }
)
scales = st.fixed_dictionaries(
    {
        "type": st.just("score"),
        "instructions": text | st.just({"goal": ["rate"]}),
        "criteria": st.lists(json_values, min_size=1, max_size=8) | st.integers(50, 110).map(lambda n: ["same"] * n),
    }
)
bodies = st.fixed_dictionaries(
    {
        "state": text | st.dictionaries(text, text, max_size=3) | st.lists(text, max_size=3),
        "questions": st.dictionaries(text, nouls | choices | scales, min_size=1, max_size=3),
        "samples": st.integers(1, 4),
    }
)


@settings(max_examples=40, deadline=None)
@given(body=bodies)
def test_answers_are_the_judges(decide: Any, body: dict[str, Any]) -> None:
    """Any request, of every kind and size: the same answers to 1e-12 as worked out plainly."""
    outcomes, _ = decide(read_body(body).request, hashed)
    assert list(outcomes) == list(body["questions"]) or len(outcomes) == len(body["questions"])
    for id, question in body["questions"].items():
        answer = outcomes[id]
        assert not isinstance(answer, Skipped)
        assert close(judge(body, question), answer_json(answer))


def test_judge_gives_the_reference_answers(vectors: Any) -> None:
    """The judge itself is right: it gives the vectors' answers."""
    hashed_vectors = [vector for vector in vectors["vectors"] if vector["score_fn"] == "sha256"]
    assert len(hashed_vectors) > 40
    for vector in hashed_vectors:
        for id, question in vector["request"]["questions"].items():
            assert close(vector["answers"][id], judge(vector["request"], question)), vector["name"]

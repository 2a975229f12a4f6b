"""Replays a file of reference vectors against the method: exact prompts, unrounded answers.

Owns the file's format (`openjev-letter-vectors/1`) and its documented score functions, which stand where a model
would. Pure functions on any thread; the vectors are in the bracket style, and are not held to the doors' rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LetterwiseError, MalformedBody
from .answers import Answer, Skipped
from .decision import Decision, Pass, Reading
from .jev import answer_json, read_body
from .validation import Limits

FORMAT = "openjev-letter-vectors/1"
STYLE = "bracket"
TOLERANCE = 1e-9

ScoreFunction = Callable[[str, int], float]


@dataclass(frozen=True)
class CaseResult:
    """One vector's outcome; `reason` is None when it passed."""

    name: str
    reason: str | None

    @property
    def passed(self) -> bool:
        return self.reason is None


def sha256_score(prompt: str, index: int) -> float:
    """-8 u / 2^32, u the first four bytes of SHA-256 over the prompt, a zero byte and the letter's index."""
    digest = hashlib.sha256(prompt.encode() + b"\0" + str(index).encode()).digest()
    return -8.0 * int.from_bytes(digest[:4], "big") / 2**32


SCORE_FUNCTIONS: Mapping[str, ScoreFunction] = {
    "sha256": sha256_score,
    "flat": lambda prompt, index: -3.0,
    "first": lambda prompt, index: 0.0 if index == 0 else -60.0,
    "not_first": lambda prompt, index: -60.0 if index == 0 else 0.0,
    "falling": lambda prompt, index: -0.25 * index,
}


def replay(document: Any, *, tolerance: float = TOLERANCE) -> list[CaseResult]:
    """Every vector of a parsed file, in its order. `tolerance` is absolute, for each number of an answer.

    Raises MalformedBody for a document that is not in the format.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise MalformedBody(f"expected a vectors file of the format {FORMAT}")
    vectors = document.get("vectors")
    if not isinstance(vectors, list) or not all(isinstance(vector, Mapping) for vector in vectors):
        raise MalformedBody("expected the vectors as a list of objects")
    return [_replay_one(vector, index, tolerance) for index, vector in enumerate(vectors)]


def _replay_one(vector: Mapping[str, Any], index: int, tolerance: float) -> CaseResult:
    name = str(vector.get("name", f"vectors[{index}]"))
    try:
        return CaseResult(name, _difference(vector, tolerance))
    except LetterwiseError as error:
        return CaseResult(name, f"refused: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        return CaseResult(name, f"not in the format: {type(error).__name__} {error}")


def _difference(vector: Mapping[str, Any], tolerance: float) -> str | None:
    score = SCORE_FUNCTIONS.get(vector["score_fn"])
    if score is None:
        return f"unknown score function {vector['score_fn']!r}"
    prompts, answers = _decide(vector["request"], score)
    return _prompts_differ(vector["prompts"], prompts) or _values_differ(
        "answers", vector["answers"], {id: answer_json(answer) for id, answer in answers.items()}, tolerance
    )


def _decide(body: Mapping[str, Any], score: ScoreFunction) -> tuple[dict[str, list[Pass]], dict[str, Answer]]:
    """Each question's passes as they were sent, and its answer, in the request's order."""
    # The reference has no limit on samples beyond the caller's own.
    request = read_body(body, Limits(max_samples=2**31)).request
    decision = Decision(request, style=STYLE)
    prompts: dict[str, list[Pass]] = {question.id: [] for question in request.questions}
    found: dict[str, Answer] = {}
    while passes := decision.ready():
        for one in passes:
            prompts[one.question_id].append(one)
            reading = Reading(tuple(score(one.text, letter) for letter in range(one.letters)), 1.0)
            for outcome in decision.take(one, reading):
                if not isinstance(outcome, Skipped):
                    found[outcome.id] = outcome
    return prompts, {id: found[id] for id in prompts if id in found}


def _prompts_differ(expected: Mapping[str, Any], prompts: Mapping[str, Sequence[Pass]]) -> str | None:
    per_question = expected["per_question"]
    if list(per_question) != list(prompts):
        return f"prompts: expected those of {list(per_question)}, not of {list(prompts)}"
    total = sum(len(passes) for passes in prompts.values())
    if expected.get("count", total) != total:
        return f"prompts: expected {expected['count']}, not {total}"
    for id, passes in prompts.items():
        if len(per_question[id]) != len(passes):
            return f"prompts.{id}: expected {len(per_question[id])}, not {len(passes)}"
        for index, (wanted, one) in enumerate(zip(per_question[id], passes, strict=True)):
            if problem := _prompt_differs(wanted, one):
                return f"prompts.{id}[{index}]: {problem}"
    return None


def _prompt_differs(wanted: Mapping[str, Any], one: Pass) -> str | None:
    if wanted["letters"] != one.letters:
        return f"expected {wanted['letters']} letters, not {one.letters}"
    if "text" not in wanted and "sha256" not in wanted:
        return "the vector gives neither text nor sha256"
    if "text" in wanted and wanted["text"] != one.text:
        return "the text differs"
    if "sha256" in wanted and wanted["sha256"] != hashlib.sha256(one.text.encode()).hexdigest():
        return "the text's sha256 differs"
    return None


def _values_differ(path: str, wanted: Any, got: Any, tolerance: float) -> str | None:
    """Where two JSON values differ: floats by more than `tolerance`, the order of keys counting as a difference."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        if list(wanted) != list(got):
            return f"{path}: expected the keys {list(wanted)}, not {list(got)}"
        differing = (_values_differ(f"{path}.{key}", wanted[key], got[key], tolerance) for key in wanted)
        return next((difference for difference in differing if difference), None)
    if _is_number(wanted) and _is_number(got):
        return None if abs(wanted - got) <= tolerance else f"{path}: expected {wanted!r}, not {got!r}"
    return None if type(wanted) is type(got) and wanted == got else f"{path}: expected {wanted!r}, not {got!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

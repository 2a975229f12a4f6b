"""Builds the messages that the client sends, from a caller's values.

Pure: text stays text, anything else becomes JSON text with its keys in their order. A value that cannot be sent raises
InvalidRequest with the field's path; every other rule is the server's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .errors import InvalidRequest, Violation
from .questions import (
    AskIf,
    Choice,
    Json,
    Noul,
    Option,
    Question,
    Questions,
    Score,
    identified,
)
from .v1 import decision_pb2 as pb


def decide_request(
    state: Json, questions: Questions, *, samples: int = 1, ask: Sequence[str] | None = None, model: str | None = None
) -> pb.DecideRequest:
    """A state and the questions about it, as one message."""
    if ask is not None and not ask:
        raise _invalid("ask", "names at least one question; leave it out to ask all")
    if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples < 2**32:
        raise _invalid("samples", "must be a whole number of at least 1")
    numbered = enumerate(identified(questions))
    return pb.DecideRequest(
        state=_value(state, "state"),
        questions=[
            _question(each, _text(name, f"questions[{i}].id"), f"questions[{i}]") for i, (name, each) in numbered
        ],
        samples=samples,
        ask=[_text(each, f"ask[{i}]") for i, each in enumerate(ask or ())],
        model=_text(model or "", "model"),
    )


def prewarm_request(state: Json, *, model: str | None = None) -> pb.PrewarmRequest:
    """A state to read before its questions arrive."""
    return pb.PrewarmRequest(state=_value(state, "state"), model=_text(model or "", "model"))


def _question(question: Question, question_id: str, path: str) -> pb.Question:
    if not isinstance(question, Noul | Choice | Score):
        raise _invalid(path, "must be a Noul, Choice or Score")
    built = pb.Question(
        id=question_id,
        instructions=_value(question.instructions, f"{path}.instructions"),
        ask_if=_ask_if(question.ask_if, f"{path}.ask_if"),
    )
    match question:
        case Noul(yes=yes, no=no):
            built.noul.CopyFrom(pb.Noul(yes=_described(yes, f"{path}.yes"), no=_described(no, f"{path}.no")))
        case Choice(options=options):
            built.choice.CopyFrom(
                pb.Choice(options=[_option(o, f"{path}.options[{i}]") for i, o in enumerate(options)])
            )
        case Score(levels=levels):
            built.score.CopyFrom(pb.Score(levels=[_value(v, f"{path}.levels[{i}]") for i, v in enumerate(levels)]))
    return built


def _option(option: Option, path: str) -> pb.Option:
    return pb.Option(
        name=_text(option.name, f"{path}.name"), description=_described(option.description, f"{path}.description")
    )


def _ask_if(conditions: AskIf, path: str) -> list[pb.AskIf]:
    listed = [(key, [answers] if isinstance(answers, str) else answers) for key, answers in conditions.items()]
    return [
        pb.AskIf(
            question_id=_text(key, f"{path}[{i}].question_id"),
            answers=[_text(answer, f"{path}[{i}].answers[{k}]") for k, answer in enumerate(answers)],
        )
        for i, (key, answers) in enumerate(listed)
    ]


def _described(description: Json, path: str) -> pb.Value | None:
    """A description that may be left out."""
    return None if description is None else _value(description, path)


def _value(value: Json, path: str) -> pb.Value:
    if isinstance(value, str):
        return pb.Value(text=_text(value, path))
    try:
        encoded = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise _invalid(path, "must be text or a value that JSON can hold") from None
    return pb.Value(json=_text(encoded, path))


def _text(text: str, path: str) -> str:
    """The text itself, when the wire can carry it."""
    if not isinstance(text, str):
        raise _invalid(path, "must be text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(path, "holds half of a surrogate pair, which is not text") from None
    return text


def _invalid(path: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {expected}", violations=[Violation(path, expected)])

"""A Jev JSON body as typed questions, and a decision as the Jev reply.

Owns that format's shape on the client's side. What a request may ask for is the server's to judge. Pure functions; a
body that cannot be read raises BodyError, which names the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from difflib import get_close_matches

from .answers import Answer, ChoiceAnswer, Decision, NoulAnswer
from .questions import Choice, Json, Noul, Question, Score
from .requests import named_path, question_part
from .serving import Adapter, ServiceClass

_BODY_FIELDS = ("state", "questions", "samples", "ask", "model", "adapter", "service_class")
_ADAPTER_FIELDS = ("name", "scale")
_QUESTION_FIELDS = ("type", "instructions", "criteria", "ask_if")
_OUTCOMES = ("true", "false")
_IMAGE_FIELDS = ("images", "assets")
# a reply names no more of the fields that were not used
_MAX_IGNORED = 64


class BodyError(ValueError):
    """The body cannot be read; the message names the field and what was expected."""


@dataclass(frozen=True)
class Body:
    """A request as a Jev body has it; its questions carry their ids.

    ignored: the fields that were accepted and are not used, by path.
    """

    state: Json
    questions: dict[str, Question]
    samples: int = 1
    ask: list[str] | None = None
    model: str | None = None
    adapter: Adapter | None = None
    service_class: ServiceClass | None = None
    ignored: tuple[str, ...] = ()


def parse(text: str | bytes) -> dict[str, Json]:
    """The JSON object in a body, with repeated keys and numbers that are not finite refused."""
    try:
        body = json.loads(text, object_pairs_hook=_object, parse_constant=_not_a_number)
    except BodyError:
        raise
    except json.JSONDecodeError as problem:
        raise BodyError(f"line {problem.lineno} is not JSON: {problem.msg}") from None
    except UnicodeDecodeError:
        raise BodyError("the body is not UTF-8 text") from None
    except RecursionError:
        raise BodyError("the body is nested too deeply") from None
    if not isinstance(body, dict):
        raise BodyError("expected a JSON object")
    _refuse_repeated(body)
    return body


def _state(body: dict[str, Json]) -> Json:
    """The state alone."""
    if body.get("state") is None:
        raise _wrong("state", None, "text, or any JSON value but null", _misspelt(body, "state", _BODY_FIELDS))
    return body["state"]


def read_prewarm(body: dict[str, Json]) -> dict[str, Json]:
    """What a prewarm reads of a body, as the keywords of `Client.prewarm`."""
    return {
        "state": _state(body),
        "adapter": _adapter(body.get("adapter")),
        "service_class": _service_class(body.get("service_class")),
    }


def read_body(body: dict[str, Json]) -> Body:
    """A parsed body as typed questions."""
    for name in _IMAGE_FIELDS:
        if body.get(name):
            raise BodyError(f"{name}: images are not read; give their content as text")
    asked = body.get("questions")
    if not isinstance(asked, dict) or not asked:
        near = _misspelt(body, "questions", _BODY_FIELDS)
        raise _wrong("questions", asked, "an object of at least one question, by id", near)
    return Body(
        state=_state(body),
        questions={name: _question(name, each) for name, each in asked.items()},
        samples=_samples(body.get("samples")),
        ask=_ask(body.get("ask")),
        model=_model(body.get("model")),
        adapter=_adapter(body.get("adapter")),
        service_class=_service_class(body.get("service_class")),
        ignored=_ignored(body),
    )


def reply(decision: Decision, ignored: tuple[str, ...] = ()) -> dict[str, Json]:
    """A decision as the Jev reply; a skipped question is absent from `answers`.

    ignored: the body's unused fields, which never reach the server.
    """
    diagnostics = asdict(decision.diagnostics)
    diagnostics["ignored"] = [*ignored, *decision.diagnostics.ignored]
    diagnostics["letter_mass"] = {name: answer.letter_mass for name, answer in decision.answers.items()}
    return {
        "model": decision.model,
        "answers": {name: _answer(answer) for name, answer in decision.answers.items()},
        "usage": asdict(decision.usage),
        "diagnostics": diagnostics,
    }


def field_path(path: str, body: Body) -> str:
    """The body's own path, `questions.team.criteria.billing`, for the gRPC one, `questions[2].options[0].name`.

    A path that leads nowhere in the body stays as it is.
    """
    return named_path(path, body.questions, _part_path)


def _part_path(question: Question, part: str) -> list[str]:
    """Where the body keeps a part of a question."""
    found = re.match(r"(\w*)(?:\[(\d+)\])?", part)
    place = int(found[2]) if found and found[2] else None
    match question, found and found[1]:
        case Choice(options=options), "options" if place is not None and place < len(options):
            return ["criteria", options[place].name]
        case _, "options" | "levels":
            return ["criteria" if place is None else f"criteria[{place}]"]
        case _, "yes" | "no":
            return ["criteria", "true" if part == "yes" else "false"]
    return question_part(question, part)


def _question(name: str, question: Json) -> Question:
    path = f"questions.{name}"
    if not name:
        raise BodyError("questions: expected ids that are not empty")
    if not isinstance(question, dict):
        raise _wrong(path, question, "an object with type and instructions")
    if question.get("instructions") is None:
        raise _wrong(
            f"{path}.instructions", None, "what is asked", _misspelt(question, "instructions", _QUESTION_FIELDS)
        )
    kind = question.get("type")
    reader = _KINDS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise _wrong(f"{path}.type", kind, "noul, choice or score")
    return reader(name, question, _ask_if(question.get("ask_if"), f"{path}.ask_if"))


def _noul(name: str, question: dict[str, Json], ask_if: dict[str, list[str]]) -> Noul:
    criteria = question.get("criteria")
    if criteria is not None and not isinstance(criteria, dict):
        raise _wrong(f"questions.{name}.criteria", criteria, "an object with true and false, or nothing")
    described = criteria or {}
    return Noul(question["instructions"], described.get("true"), described.get("false"), ask_if, name)


def _choice(name: str, question: dict[str, Json], ask_if: dict[str, list[str]]) -> Choice:
    criteria = question.get("criteria")
    if not isinstance(criteria, dict):
        raise _wrong(f"questions.{name}.criteria", criteria, "an object of option names and their descriptions")
    return Choice(question["instructions"], criteria, ask_if=ask_if, id=name)


def _score(name: str, question: dict[str, Json], ask_if: dict[str, list[str]]) -> Score:
    criteria = question.get("criteria")
    if not isinstance(criteria, list):
        raise _wrong(f"questions.{name}.criteria", criteria, "a list of levels, lowest first")
    return Score(question["instructions"], criteria, ask_if=ask_if, id=name)


_KINDS: dict[str, Callable[[str, dict[str, Json], dict[str, list[str]]], Question]] = {
    "noul": _noul,
    "choice": _choice,
    "score": _score,
}


def _ask_if(conditions: Json, path: str) -> dict[str, list[str]]:
    if conditions is None:
        return {}
    if not isinstance(conditions, dict):
        raise _wrong(path, conditions, "an object of question ids and wanted answers")
    return {name: _names(answers, f"{path}.{name}") for name, answers in conditions.items()}


def _names(names: Json, path: str) -> list[str]:
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise _wrong(path, names, "a list of at least one text")
    return listed


def _ask(names: Json) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise _wrong("ask", names, "a list of question ids")
    return _names(names, "ask")


def _samples(samples: Json) -> int:
    if samples is None or samples == "auto":
        return 1
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise _wrong("samples", samples, 'a whole number of at least 1, or "auto"')
    return samples


def _model(model: Json) -> str | None:
    if model is not None and not isinstance(model, str):
        raise _wrong("model", model, "the name of a model, as text")
    return model


def _adapter(adapter: Json) -> Adapter | None:
    if adapter is None or isinstance(adapter, str):
        return None if adapter is None else Adapter(adapter)
    if not isinstance(adapter, dict):
        raise _wrong("adapter", adapter, 'the name of an adapter, or {"name": …, "scale": …}')
    name, scale = adapter.get("name"), adapter.get("scale")
    if not isinstance(name, str):
        raise _wrong("adapter.name", name, "the name of an adapter, as text")
    if isinstance(scale, bool) or not isinstance(scale, int | float | None):
        raise _wrong("adapter.scale", scale, "a number")
    return Adapter(name) if scale is None else Adapter(name, scale)


def _service_class(service_class: Json) -> ServiceClass | None:
    if service_class not in (None, "interactive", "batch"):
        raise _wrong("service_class", service_class, "interactive or batch")
    found: ServiceClass | None = service_class
    return found


def _ignored(body: dict[str, Json]) -> tuple[str, ...]:
    """The fields that nothing reads, by path."""
    names = [name for name in body if name not in _BODY_FIELDS]
    if isinstance(adapter := body.get("adapter"), dict):
        names += [f"adapter.{name}" for name in adapter if name not in _ADAPTER_FIELDS]
    for name, question in body["questions"].items():
        names += [f"questions.{name}.{each}" for each in question if each not in _QUESTION_FIELDS]
        if question["type"] == "noul":
            criteria = question.get("criteria") or {}
            names += [f"questions.{name}.criteria.{each}" for each in criteria if each not in _OUTCOMES]
    return tuple(names[:_MAX_IGNORED])


def _answer(answer: Answer) -> dict[str, Json]:
    if isinstance(answer, NoulAnswer):
        return {"type": "noul", "noul": answer.probability}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "probabilities": dict(answer.probabilities),
            "confidence": answer.confidence,
        }
    return {
        "type": "score",
        "score": answer.score,
        "legend": {str(index): level for index, level in enumerate(answer.levels)},
        "probabilities": {str(index): probability for index, probability in enumerate(answer.probabilities)},
        "confidence": answer.confidence,
    }


def _wrong(path: str, value: Json, expected: str, hint: str = "") -> BodyError:
    """The error for a field that is missing (null counts as such) or holds something else than expected."""
    return BodyError(f"{path}: {'is missing; ' if value is None else ''}expected {expected}{hint}")


def _misspelt(holder: dict[str, Json], name: str, known: tuple[str, ...]) -> str:
    """A word on the key that may be meant for the missing `name`; nothing where none is like it."""
    near = get_close_matches(name, [key for key in holder if key not in known], n=1, cutoff=0.75)
    return f" ({near[0]!r} is no field)" if near else ""


class _Repeated(dict[str, Json]):
    """An object in whose text `repeated` stands more than once; refused when its path is known."""

    repeated: str


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    names = [name for name, _ in pairs]
    marked = _Repeated(found)
    marked.repeated = next(name for name in names if names.count(name) > 1)
    return marked


def _refuse_repeated(body: dict[str, Json]) -> None:
    """Raises for a key that stands twice in an object, wherever that is; walks without recursion."""
    waiting: list[tuple[str, Json]] = [("", body)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Repeated):
            raise BodyError(f"{_inside(path, value.repeated)}: stands twice in one object; expected each key once")
        if isinstance(value, dict):
            waiting += [(_inside(path, name), each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", each) for index, each in enumerate(value)]


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _not_a_number(name: str) -> Json:
    raise BodyError(f"{name} is not a JSON number")

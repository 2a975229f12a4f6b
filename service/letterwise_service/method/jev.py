"""The Jev JSON body and reply: what the HTTP route, the command line and the vectors speak.

Owns the shape of both. Pure functions on any thread; what a sound request may hold is `validation.py`'s, how JSON
text is read is `jsontext.py`'s, and the engine's diagnostics come in as a plain mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest, MalformedBody, Unsupported, Violation
from . import jsontext
from .answers import Answer, ChoiceAnswer, NoulAnswer, Skipped
from .paths import JevPaths, shown
from .request import BATCH, INTERACTIVE, Adapter, Choice, DecisionRequest, Json, Noul, Option, Question, Score
from .validation import DEFAULT_LIMITS, MAX_ADAPTER_SCALE, MAX_VIOLATIONS, Limits, check

_BODY_FIELDS = ("state", "questions", "samples", "ask", "model", "adapter", "service_class")
_ADAPTER_FIELDS = ("name", "scale")
_IMAGE_FIELDS = ("images", "assets")
_QUESTION_FIELDS = ("type", "instructions", "criteria", "ask_if")
_OUTCOMES = ("true", "false")
# An answer echoes the names of what it did not use: not more of them than a reader would read.
_MAX_IGNORED = 64


@dataclass(frozen=True)
class JevRequest:
    """A body as the domain sees it; `model` is the name that the caller wrote, or None."""

    request: DecisionRequest
    model: str | None


def parse_body(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> JevRequest:
    """The request in a JSON text, read strictly and found sound; `samples` is lowered to the limit.

    Raises MalformedBody for text that is not a JSON object, Unsupported for images, and InvalidRequest, which
    names each field, for everything else.
    """
    body = jsontext.parse(text)
    if not isinstance(body, dict):
        raise MalformedBody("expected a JSON object")
    read = read_body(body, limits)
    check(read.request, JevPaths(), limits)
    return read


def read_body(body: Mapping[str, Json], limits: Limits = DEFAULT_LIMITS) -> JevRequest:
    """The request in a parsed body, its shape checked and nothing more: the method takes what no door would.

    Raises InvalidRequest and Unsupported as `parse_body` does.
    """
    for field in _IMAGE_FIELDS:
        if body.get(field):
            raise Unsupported(f"{field}: images are not read; give their content as text")
    reader = _Reader(limits)
    read = reader.body(body)
    if reader.broken:
        raise InvalidRequest(reader.broken[:MAX_VIOLATIONS])
    return read


def reply(
    model: str, answers: Iterable[Answer], diagnostics: Mapping[str, Any], skipped: Iterable[Skipped] = ()
) -> dict[str, Any]:
    """The reply as a JSON object. `answers` in the order wanted; a skipped question is absent from them.

    diagnostics: as the engine reports them, by field name, `prompt_tokens` among them. `skipped` stands in for
    its field of that name when that is absent.
    """
    given = list(answers)
    told = {"skipped": list(skipped), **diagnostics}
    told["skipped"] = [_skipped(one) for one in told["skipped"]]
    told["letter_mass"] = {answer.id: answer.letter_mass for answer in given}
    return {
        "model": model,
        "answers": {answer.id: answer_json(answer) for answer in given},
        "usage": {"input_tokens": told["prompt_tokens"], "output_tokens": 0},
        "diagnostics": _plain(told),
    }


def answer_json(answer: Answer) -> dict[str, Json]:
    """One answer in Jev's shape, nothing rounded."""
    if isinstance(answer, NoulAnswer):
        return {"type": "noul", "noul": answer.probability}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "probabilities": dict(zip(answer.names, answer.probabilities, strict=True)),
            "confidence": answer.confidence,
        }
    return {
        "type": "score",
        "score": answer.score,
        "legend": {str(index): level for index, level in enumerate(answer.legend)},
        "probabilities": {str(index): probability for index, probability in enumerate(answer.probabilities)},
        "confidence": answer.confidence,
    }


def _skipped(skipped: Skipped | Mapping[str, Any]) -> dict[str, Json]:
    if not isinstance(skipped, Skipped):
        return dict(skipped)
    was = {"was": skipped.was, "wanted": list(skipped.wanted)}
    return {"id": skipped.id, "because": skipped.because, **was}


def _plain(value: Any) -> Any:
    """`value` with its tuples as lists, as JSON would give it back."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


class _Reader:
    """Reads one body; collects every violation of its shape and the fields that are not used."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.broken: list[Violation] = []
        self._ignored: list[str] = []

    def body(self, body: Mapping[str, Json]) -> JevRequest:
        self._keys_differ("", body)
        self._note_unused("", body, _BODY_FIELDS)
        questions = self._questions(body.get("questions"))
        adapter = self._adapter(body.get("adapter"))
        request = DecisionRequest(
            state=body.get("state"),
            questions=questions,
            samples=self._samples(body.get("samples")),
            ask=self._ask(body.get("ask")),
            ignored=tuple(self._ignored[:_MAX_IGNORED]),
            adapter=adapter,
            service_class=self._service_class(body.get("service_class")),
        )
        return JevRequest(request, self._model(body.get("model")))

    def _wrong(self, field: str, expected: str) -> None:
        self.broken.append(Violation(field, f"expected {expected}"))

    def _keys_differ(self, field: str, value: Mapping[str, Json]) -> None:
        if isinstance(value, jsontext.RepeatedKeys):
            for key in value.repeated:
                self._wrong(_inside(field, key), "this key once, not repeated")

    def _note_unused(self, field: str, value: Mapping[str, Json], used: tuple[str, ...]) -> None:
        for key in value:
            if key not in used:
                self._ignored.append(_inside(field, key))
                if problem := jsontext.value_problem(key) or jsontext.value_problem(value[key]):
                    self.broken.append(Violation(_inside(field, key), problem))

    def _questions(self, value: Json) -> tuple[Question, ...]:
        if not isinstance(value, dict):
            self._wrong("questions", "an object of questions by id")
            return ()
        self._keys_differ("questions", value)
        read = [self._question(id, question) for id, question in value.items()]
        return tuple(question for question in read if question is not None)

    def _question(self, id: str, value: Json) -> Question | None:
        field = _inside("questions", id)
        if not isinstance(value, dict):
            self._wrong(field, "a question: an object with a type and instructions")
            return None
        self._keys_differ(field, value)
        self._note_unused(field, value, _QUESTION_FIELDS)
        instructions, criteria = value.get("instructions"), value.get("criteria")
        ask_if = self._ask_if(f"{field}.ask_if", value.get("ask_if"))
        match value.get("type"):
            case "noul":
                yes, no = self._outcomes(f"{field}.criteria", criteria)
                return Noul(id, instructions, yes, no, ask_if)
            case "choice":
                return Choice(id, instructions, self._options(f"{field}.criteria", criteria), ask_if)
            case "score":
                return Score(id, instructions, self._levels(f"{field}.criteria", criteria), ask_if)
        self._wrong(f"{field}.type", "noul, choice or score")
        return None

    def _outcomes(self, field: str, criteria: Json) -> tuple[Json, Json]:
        if criteria is None:
            return None, None
        if not isinstance(criteria, dict):
            self._wrong(field, "an object with true and false, or nothing")
            return None, None
        self._keys_differ(field, criteria)
        self._note_unused(field, criteria, _OUTCOMES)
        return criteria.get("true"), criteria.get("false")

    def _options(self, field: str, criteria: Json) -> tuple[Option, ...]:
        if not isinstance(criteria, dict):
            self._wrong(field, "an object of option descriptions by name")
            return ()
        self._keys_differ(field, criteria)
        return tuple(Option(name, description) for name, description in criteria.items())

    def _levels(self, field: str, criteria: Json) -> tuple[Json, ...]:
        if not isinstance(criteria, list):
            self._wrong(field, "a list of levels, lowest first")
            return ()
        return tuple(criteria)

    def _ask_if(self, field: str, value: Json) -> dict[str, tuple[str, ...]]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(field, "an object of wanted answers by question id")
            return {}
        self._keys_differ(field, value)
        return {id: self._wanted(_inside(field, id), wanted) for id, wanted in value.items()}

    def _wanted(self, field: str, value: Json) -> tuple[str, ...]:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self._wrong(field, "a list of answers, each a text")
            return ()
        return tuple(value)

    def _samples(self, value: Json) -> int:
        if value is None or value == "auto":
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._wrong("samples", 'an integer of at least 1, or "auto"')
            return 1
        return self._limits.samples(value)

    def _ask(self, value: Json) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(id, str) for id in value):
            self._wrong("ask", "a list of question ids")
            return None
        return tuple(value)

    def _adapter(self, value: Json) -> Adapter | None:
        if value is None or isinstance(value, str):
            return None if value is None else Adapter(value)
        if not isinstance(value, dict):
            self._wrong("adapter", 'the name of an adapter, or {"name": …, "scale": …}')
            return None
        self._keys_differ("adapter", value)
        self._note_unused("adapter", value, _ADAPTER_FIELDS)
        name, scale = value.get("name"), value.get("scale")
        scale = 1 if scale is None else scale
        if not isinstance(name, str):
            self._wrong("adapter.name", "the name of an adapter, as text")
        elif isinstance(scale, bool) or not isinstance(scale, int | float) or abs(scale) > MAX_ADAPTER_SCALE:
            self._wrong("adapter.scale", f"a number from -{MAX_ADAPTER_SCALE} to {MAX_ADAPTER_SCALE}")
        else:
            return Adapter(name, float(scale))
        return None

    def _service_class(self, value: Json) -> str:
        if value is None or value == INTERACTIVE:
            return INTERACTIVE
        if value != BATCH:
            self._wrong("service_class", f"{INTERACTIVE} or {BATCH}")
        return BATCH

    def _model(self, value: Json) -> str | None:
        if value is not None and (not isinstance(value, str) or jsontext.has_surrogate(value)):
            self._wrong("model", "the name of a model, as text")
            return None
        return value


def _inside(field: str, key: str) -> str:
    return f"{field}.{shown(key)}" if field else shown(key)

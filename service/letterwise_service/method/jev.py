"""The Jev JSON body and reply: what the HTTP route, the command line and the vectors speak.

Owns the shape of both. Pure functions on any thread; what a sound request may hold is `validation.py`'s, how JSON
text is read is `jsontext.py`'s, and the engine's diagnostics come in as a plain mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest, Unsupported
from .answers import Answer, ChoiceAnswer, NoulAnswer, Skipped
from .bodies import BodyReader, inside, parse_object
from .paths import JevPaths
from .request import Adapter, Choice, DecisionRequest, Json, Noul, Option, Question, Score
from .validation import DEFAULT_LIMITS, Limits, check, check_state

_BODY_FIELDS = ("state", "questions", "samples", "ask", "model", "adapter", "service_class")
_PREWARM_FIELDS = ("state", "model", "adapter", "service_class")
_IMAGE_FIELDS = ("images", "assets")
_QUESTION_FIELDS = ("type", "instructions", "criteria", "ask_if")
_OUTCOMES = ("true", "false")
# What the wider Jev family knows and a letter readout has no use for, at the top and in a question.
FAMILY_FIELDS = frozenset(
    {
        "instructions",
        "auto_max",
        "auto_threshold",
        "steps",
        "think",
        "think_threshold",
        "think_budget",
        "chunk_rows",
        "chunk_prompt",
        "sequential",
        "seed",
        "depends_on",
        "alone",
    }
)


@dataclass(frozen=True)
class JevRequest:
    """A body as the domain sees it; `model` is the name that the caller wrote, or None."""

    request: DecisionRequest
    model: str | None


@dataclass(frozen=True)
class Prewarm:
    """A state to be read before its questions arrive, and the fields of its body that are not used."""

    state: Json
    adapter: Adapter | None
    service_class: str
    ignored: tuple[str, ...]


def parse_body(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> JevRequest:
    """The request in a JSON text, read strictly and found sound; `samples` is lowered to the limit.

    Raises MalformedBody for text that is not a JSON object, Unsupported for images, and InvalidRequest, which
    names each field, for everything else.
    """
    body = parse_object(text)
    _refuse_images(body)
    reader = _Reader(limits)
    read = reader.body(body)
    broken = reader.broken
    try:
        if broken:
            check_state(read.request.state)
        else:
            check(read.request, JevPaths(), limits)
    except InvalidRequest as refused:
        broken = (*refused.violations, *broken)
    if broken:
        raise reader.refusal(broken)
    return read


def read_body(body: Mapping[str, Json], limits: Limits = DEFAULT_LIMITS) -> JevRequest:
    """The request in a parsed body, its shape checked and nothing more: the method takes what no door would.

    Raises InvalidRequest and Unsupported as `parse_body` does.
    """
    _refuse_images(body)
    reader = _Reader(limits)
    read = reader.body(body)
    reader.check()
    return read


def parse_prewarm(text: str | bytes) -> Prewarm:
    """The state in a JSON text, read as strictly; what else a decision's body has is taken and not used.

    Raises as `parse_body` does.
    """
    body = parse_object(text)
    _refuse_images(body)
    reader = BodyReader(DEFAULT_LIMITS)
    reader.keys_differ("", body)
    reader.note_unused("", body, _PREWARM_FIELDS)
    adapter, service_class = reader.adapter(body.get("adapter")), reader.service_class(body.get("service_class"))
    reader.model(body.get("model"))
    reader.check()
    try:
        check_state(body.get("state"), adapter)
    except InvalidRequest as refused:
        raise reader.refusal(refused.violations) from None
    return Prewarm(body.get("state"), adapter, service_class, reader.ignored)


def _refuse_images(body: Mapping[str, Json]) -> None:
    for field in _IMAGE_FIELDS:
        if body.get(field):
            raise Unsupported(f"{field}: images are not read; give their content as text")


def reply(
    model: str, answers: Iterable[Answer], diagnostics: Mapping[str, Any], skipped: Iterable[Skipped] = ()
) -> dict[str, Any]:
    """The reply as a JSON object. `answers` in the order wanted; a skipped question is absent from them.

    diagnostics: as the engine reports them, by field name, `prompt_tokens` among them. `skipped` stands in for
    its field of that name when that is absent.
    """
    given = list(answers)
    told = {"skipped": list(skipped), **diagnostics}
    told["skipped"] = [skipped_json(one) for one in told["skipped"]]
    told["letter_mass"] = {answer.id: answer.letter_mass for answer in given}
    return {
        "model": model,
        "answers": {answer.id: answer_json(answer) for answer in given},
        "usage": {"input_tokens": told["prompt_tokens"], "output_tokens": 0},
        "diagnostics": _plain(told),
    }


def prewarm_reply(model: str, diagnostics: Mapping[str, Any], ignored: Iterable[str] = ()) -> dict[str, Any]:
    """What a prewarm did, as a JSON object. `diagnostics` as in `reply`; `ignored` stands in for its field."""
    prefix = diagnostics["prefix"]
    return {
        "model": model,
        "prompt_tokens": prefix["tokens"],
        "reused_tokens": prefix["reused_tokens"],
        "stored": prefix["stored"],
        "tier": prefix["tier"],
        "usage": {"input_tokens": diagnostics["prompt_tokens"], "output_tokens": 0},
        "diagnostics": _plain({**diagnostics, "ignored": list(ignored)}),
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


def skipped_json(skipped: Skipped | Mapping[str, Any]) -> dict[str, Json]:
    if not isinstance(skipped, Skipped):
        return dict(skipped)
    return {"id": skipped.id, "because": skipped.because, "was": skipped.was, "wanted": list(skipped.wanted)}


def _plain(value: Any) -> Any:
    """`value` with its tuples as lists, as JSON would give it back."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


class _Reader(BodyReader):
    """Reads the body of a decision."""

    def body(self, body: Mapping[str, Json]) -> JevRequest:
        self.keys_differ("", body)
        self.note_unused("", body, _BODY_FIELDS)
        questions = self._questions(body.get("questions"))
        adapter = self.adapter(body.get("adapter"))
        request = DecisionRequest(
            state=body.get("state"),
            questions=questions,
            samples=self.samples(body.get("samples")),
            ask=self._ask(body.get("ask")),
            ignored=self.ignored,
            adapter=adapter,
            service_class=self.service_class(body.get("service_class")),
        )
        return JevRequest(request, self.model(body.get("model")))

    def _questions(self, value: Json) -> tuple[Question, ...]:
        if not isinstance(value, dict):
            self.wrong("questions", "an object of questions by id")
            return ()
        self.keys_differ("questions", value)
        read = [self._question(id, question) for id, question in value.items()]
        return tuple(question for question in read if question is not None)

    def _question(self, id: str, value: Json) -> Question | None:
        field = inside("questions", id)
        if not isinstance(value, dict):
            self.wrong(field, "a question: an object with a type and instructions")
            return None
        self.keys_differ(field, value)
        self.note_unused(field, value, _QUESTION_FIELDS)
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
        self.wrong(f"{field}.type", "noul, choice or score")
        return None

    def _outcomes(self, field: str, criteria: Json) -> tuple[Json, Json]:
        if criteria is None:
            return None, None
        if not isinstance(criteria, dict):
            self.wrong(field, "an object with true and false, or nothing")
            return None, None
        self.keys_differ(field, criteria)
        self.note_unused(field, criteria, _OUTCOMES)
        return criteria.get("true"), criteria.get("false")

    def _options(self, field: str, criteria: Json) -> tuple[Option, ...]:
        if not isinstance(criteria, dict):
            self.wrong(field, "an object of option descriptions by name")
            return ()
        self.keys_differ(field, criteria)
        return tuple(Option(name, description) for name, description in criteria.items())

    def _levels(self, field: str, criteria: Json) -> tuple[Json, ...]:
        if not isinstance(criteria, list):
            self.wrong(field, "a list of levels, lowest first")
            return ()
        return tuple(criteria)

    def _ask_if(self, field: str, value: Json) -> dict[str, tuple[str, ...]]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(field, "an object of wanted answers by question id")
            return {}
        self.keys_differ(field, value)
        return {id: self._wanted(inside(field, id), wanted) for id, wanted in value.items()}

    def _wanted(self, field: str, value: Json) -> tuple[str, ...]:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.wrong(field, "a list of answers, each a text")
            return ()
        return tuple(value)

    def _ask(self, value: Json) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(id, str) for id in value):
            self.wrong("ask", "a list of question ids")
            return None
        return tuple(value)

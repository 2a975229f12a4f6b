"""OpenAI's decisions body and reply: its questions are an array of `predicate`, `choice` and `score`.

Owns the shape of both, as the `openai` package's decisions resource has them, and how they map onto the domain's
request: a predicate is a noul on a statement, a choice's values are option names, a score's labels are levels. Pure
functions on any thread; the input's way to a state is `openai_input.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest, Violation
from .answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer
from .bodies import BodyReader, parse_object
from .openai_input import InputReader
from .paths import OpenAIPaths
from .request import Choice, DecisionRequest, Json, Noul, Option, Question, Score
from .validation import DEFAULT_LIMITS, Limits, check

# The last three are ours: an `extra_body` may hold them.
_BODY_FIELDS = ("input", "model", "questions", "samples", "adapter", "service_class")
_FIELDS = {
    "predicate": ("type", "name", "instructions"),
    "choice": ("type", "name", "instructions", "choices"),
    "score": ("type", "name", "instructions", "levels"),
}
_CHOICE_FIELDS = ("value", "description")
_LEVEL_FIELDS = ("label", "description")


@dataclass(frozen=True)
class Asked:
    """One question as its caller knows it. `values`: a choice's values or a score's labels, in order."""

    name: str | None
    values: tuple[str | bool, ...] = ()


@dataclass(frozen=True)
class OpenAIRequest:
    """A body as the domain sees it; the question at place i has the id `str(i)`, since names need not differ."""

    request: DecisionRequest
    asked: tuple[Asked, ...]


def parse_body(text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> OpenAIRequest:
    """The request in a JSON text, read strictly and found sound.

    Raises MalformedBody for text that is not a JSON object, Unsupported for images, and InvalidRequest, which
    names each field, for everything else.
    """
    reader = _Reader(limits)
    read = reader.body(parse_object(text))
    reader.check()
    try:
        check(read.request, OpenAIPaths(), limits)
    except InvalidRequest as error:
        raise InvalidRequest([_in_their_words(violation) for violation in error.violations]) from None
    return read


def reply(
    model: str, asked: Iterable[Asked], answers: Iterable[Answer], diagnostics: Mapping[str, Any]
) -> dict[str, Any]:
    """The reply as a JSON object; `answers` in the request's order.

    diagnostics: as the Jev reply has them; they travel beside the fields that the `openai` package knows. Kept
    tokens are counted once, though every pass of a decision stands on them.
    """
    tokens, prefix = diagnostics["prompt_tokens"], diagnostics["prefix"]
    written = prefix["tokens"] - prefix["reused_tokens"] if prefix["stored"] else 0
    return {
        "model": model,
        "answers": [_answer(one, answer) for one, answer in zip(asked, answers, strict=True)],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": prefix["reused_tokens"], "cache_write_tokens": written},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
        "diagnostics": dict(diagnostics),
    }


def _answer(asked: Asked, answer: Answer) -> dict[str, Json]:
    match answer:
        case NoulAnswer():
            return {"type": "predicate", "name": asked.name, "probability": answer.probability}
        case ChoiceAnswer():
            pairs = zip(asked.values, answer.probabilities, strict=True)
            return {
                "type": "choice",
                "name": asked.name,
                "choice": asked.values[answer.names.index(answer.choice)],
                "confidence": answer.confidence,
                "probabilities": [{"value": value, "probability": probability} for value, probability in pairs],
            }
        case ScoreAnswer():
            levels = enumerate(zip(asked.values, answer.probabilities, strict=True))
            return {
                "type": "score",
                "name": asked.name,
                "score": answer.score,
                "confidence": answer.confidence,
                "probabilities": [{"label": label, "value": at, "probability": p} for at, (label, p) in levels],
            }


def _in_their_words(violation: Violation) -> Violation:
    """The domain's state is their `input`."""
    return Violation("input", violation.description) if violation.field == "state" else violation


class _Reader(BodyReader):
    """Reads one body; what breaks a rule of JSON anywhere is found before a part of it is written as text."""

    def body(self, body: Mapping[str, Json]) -> OpenAIRequest:
        self.keys_differ("", body)
        self.note_unused("", body, _BODY_FIELDS)
        self.model(body.get("model"))
        state = InputReader(self).state(body.get("input"))
        read = self._questions(body.get("questions"))
        adapter = self.adapter(body.get("adapter"))
        request = DecisionRequest(
            state=state,
            questions=tuple(question for question, _ in read),
            samples=self.samples(body.get("samples")),
            ignored=self.ignored,
            adapter=adapter,
            service_class=self.service_class(body.get("service_class")),
        )
        return OpenAIRequest(request, tuple(asked for _, asked in read))

    def _questions(self, value: Json) -> list[tuple[Question, Asked]]:
        if not isinstance(value, list):
            self.wrong("questions", "an array of questions")
            return []
        read = [self._question(f"questions[{place}]", str(place), question) for place, question in enumerate(value)]
        return [pair for pair in read if pair is not None]

    def _question(self, field: str, id: str, value: Json) -> tuple[Question, Asked] | None:
        if not self.sound(field, value):
            return None
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _FIELDS:
            self.wrong(field, "a question: an object whose type is predicate, choice or score")
            return None
        self.note_unused(field, value, _FIELDS[kind])
        name = self._text_or_nothing(f"{field}.name", value.get("name"))
        instructions = self._instructions(f"{field}.instructions", value.get("instructions"))
        if kind == "predicate":
            return Noul(id, instructions), Asked(name)
        if kind == "choice":
            values, options = self._choices(f"{field}.choices", value.get("choices"))
            return Choice(id, instructions, options), Asked(name, values)
        labels, levels = self._levels(f"{field}.levels", value.get("levels"))
        return Score(id, instructions, levels), Asked(name, labels)

    def _instructions(self, field: str, value: Json) -> str | None:
        return None if value is None else InputReader(self).text(field, value)

    def _text_or_nothing(self, field: str, value: Json) -> str | None:
        if value is not None and not isinstance(value, str):
            self.wrong(field, "text, or nothing")
            return None
        return value

    def _choices(self, field: str, value: Json) -> tuple[tuple[str | bool, ...], tuple[Option, ...]]:
        values: list[str | bool] = []
        options: list[Option] = []
        texts = {one.get("value") for one in value if _has_text(one, "value")} if isinstance(value, list) else set()
        for at, one in self._objects(field, value, _CHOICE_FIELDS):
            chosen = one.get("value")
            if not isinstance(chosen, str | bool):
                self.wrong(f"{at}.value", "text, or true or false")
                continue
            description = self._text_or_nothing(f"{at}.description", one.get("description"))
            values.append(chosen)
            options.append(Option(_option_name(chosen, texts), description))
        return tuple(values), tuple(options)

    def _levels(self, field: str, value: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
        labels: list[str] = []
        levels: list[str] = []
        for at, one in self._objects(field, value, _LEVEL_FIELDS):
            label = one.get("label")
            if not isinstance(label, str):
                self.wrong(f"{at}.label", "text")
                continue
            description = self._text_or_nothing(f"{at}.description", one.get("description"))
            labels.append(label)
            levels.append(f"{label}: {description}" if description else label)
        return tuple(labels), tuple(levels)

    def _objects(self, field: str, value: Json, used: tuple[str, ...]) -> Iterable[tuple[str, Mapping[str, Json]]]:
        """Each object of an array with its path; what is none is noted."""
        if not isinstance(value, list):
            self.wrong(field, "an array of objects")
            return
        for place, one in enumerate(value):
            if not isinstance(one, dict):
                self.wrong(f"{field}[{place}]", f"an object with {used[0]} and perhaps {used[1]}")
                continue
            self.note_unused(f"{field}[{place}]", one, used)
            yield f"{field}[{place}]", one


def _has_text(value: Json, key: str) -> bool:
    return isinstance(value, dict) and isinstance(value.get(key), str)


def _option_name(value: str | bool, texts: set[Json]) -> str:
    """An option's name in the prompt; a boolean is distinct from the text that spells it, which may be there too."""
    if isinstance(value, str):
        return value
    name = "true" if value else "false"
    while name in texts:
        name += " (boolean)"
    return name

"""Protobuf → domain: a request as the caller sent it, checked, or InvalidRequest with the path of what is wrong.

Pure: no I/O, no event loop. What a value may be is `method/validation.py`'s; this module owns only what protobuf
adds: fields that are not set, and values that travel as JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message

from letterwise.v1 import chat_pb2, serving_pb2
from letterwise.v1 import decision_pb2 as pb

from ..config import EngineConfig
from ..engine.budgets import BYTES_PER_TOKEN
from ..engine.events import ModelInfo
from ..errors import InvalidRequest, MalformedBody, TooLong, Violation
from ..method import jsontext, validation
from ..method.paths import GrpcPaths
from ..method.request import (
    BATCH,
    INTERACTIVE,
    Adapter,
    Choice,
    DecisionRequest,
    Json,
    Noul,
    Option,
    Question,
    Score,
)

_SERVICE_CLASSES: dict[int, str] = {
    serving_pb2.SERVICE_CLASS_UNSPECIFIED: INTERACTIVE,
    serving_pb2.SERVICE_CLASS_INTERACTIVE: INTERACTIVE,
    serving_pb2.SERVICE_CLASS_BATCH: BATCH,
}


def decision_of(request: pb.DecideRequest, config: EngineConfig) -> DecisionRequest:
    """The decision that is asked for. Raises InvalidRequest, and Unsupported for an image."""
    limits = validation.Limits(config.max_questions, config.max_options, config.max_samples)
    reading = _Reading()
    decision = DecisionRequest(
        state=reading.field(request, "state", "state"),
        questions=reading.questions(request.questions),
        samples=limits.samples(request.samples or 1),
        ask=tuple(request.ask) or None,
        adapter=adapter_of(request),
        service_class=reading.service_class(request.service_class),
    )
    reading.check()
    validation.check(decision, GrpcPaths(), limits)
    return decision


def check_sizes(request: pb.DecideRequest, config: EngineConfig, model: ModelInfo) -> None:
    """Refuses what is too much before any of it is read. Raises TooLong and InvalidRequest."""
    if len(request.questions) > config.max_questions:
        expected = f"expected at most {config.max_questions} questions, not {len(request.questions)}"
        raise InvalidRequest([Violation("questions", expected)])
    check_size("state", request.state, model)
    for index, question in enumerate(request.questions):
        check_size(f"questions[{index}]", question, model)


def check_size(path: str, message: Message, model: ModelInfo) -> None:
    """Refuses a field with more bytes than the model's context could hold. Raises TooLong."""
    size, limit = message.ByteSize(), BYTES_PER_TOKEN * model.context_tokens
    if size > limit:
        raise TooLong(
            f"{path}: has {size} bytes; with {model.context_tokens} tokens of context, at most {limit} are looked at",
            tokens=size // BYTES_PER_TOKEN,
            limit_tokens=model.context_tokens - model.forward_tokens,
        )


def prewarm_of(request: pb.PrewarmRequest) -> tuple[Json, Adapter | None, str]:
    """The state to read, its adapter and its service class. Raises InvalidRequest, and Unsupported for an image."""
    reading = _Reading()
    state = reading.field(request, "state", "state")
    adapter, service_class = adapter_of(request), reading.service_class(request.service_class)
    reading.check()
    validation.check_state(state, adapter)
    return state, adapter, service_class


def adapter_of(request: pb.DecideRequest | pb.PrewarmRequest | chat_pb2.ChatRequest) -> Adapter | None:
    """The adapter of any request, unchecked; None for the model alone."""
    if not request.HasField("adapter"):
        return None
    adapter = request.adapter
    return Adapter(adapter.name, adapter.scale) if adapter.HasField("scale") else Adapter(adapter.name)


class _Reading:
    """One request on its way in; collects what is wrong, so that a caller hears of it together."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []

    def check(self) -> None:
        """Raises InvalidRequest when anything was wrong."""
        if self._violations:
            raise InvalidRequest(self._violations[: validation.MAX_VIOLATIONS])

    def field(self, message: Message, name: str, path: str) -> Json:
        """The value in an optional field; None when it is absent."""
        return self._value(getattr(message, name), path) if message.HasField(name) else None

    def service_class(self, number: int) -> str:
        """The domain's name for a service class; the contract may have gained classes that this server lacks."""
        if number not in _SERVICE_CLASSES:
            self._wrong("service_class", "expected interactive, batch or nothing")
        return _SERVICE_CLASSES.get(number, INTERACTIVE)

    def questions(self, questions: Iterable[pb.Question]) -> tuple[Question, ...]:
        """The questions that could be read; those that could not have left a violation."""
        read = (self._question(question, f"questions[{index}]") for index, question in enumerate(questions))
        return tuple(question for question in read if question is not None)

    def _question(self, question: pb.Question, path: str) -> Question | None:
        instructions = self.field(question, "instructions", f"{path}.instructions")
        ask_if = self._ask_if(question.ask_if, path)
        match question.WhichOneof("kind"):
            case "noul":
                yes = self.field(question.noul, "yes", f"{path}.yes")
                no = self.field(question.noul, "no", f"{path}.no")
                return Noul(question.id, instructions, yes, no, ask_if)
            case "choice":
                return Choice(question.id, instructions, self._options(question.choice, path), ask_if)
            case "score":
                return Score(question.id, instructions, self._levels(question.score, path), ask_if)
        self._wrong(path, "expected one of noul, choice and score")
        return None

    def _options(self, choice: pb.Choice, path: str) -> tuple[Option, ...]:
        return tuple(
            Option(option.name, self.field(option, "description", f"{path}.options[{index}].description"))
            for index, option in enumerate(choice.options)
        )

    def _levels(self, score: pb.Score, path: str) -> tuple[Json, ...]:
        return tuple(self._value(level, f"{path}.levels[{index}]") for index, level in enumerate(score.levels))

    def _ask_if(self, conditions: Iterable[pb.AskIf], path: str) -> dict[str, tuple[str, ...]]:
        wanted: dict[str, tuple[str, ...]] = {}
        for index, condition in enumerate(conditions):
            if condition.question_id in wanted:
                self._wrong(f"{path}.ask_if[{index}].question_id", "expected each question once, not the same again")
            wanted[condition.question_id] = tuple(condition.answers)
        return wanted

    def _value(self, value: pb.Value, path: str) -> Json:
        match value.WhichOneof("kind"):
            case "text":
                return value.text
            case "json":
                return self._json(value.json, path)
        self._wrong(path, "expected text or json to be set")
        return None

    def _json(self, text: str, path: str) -> Json:
        try:
            return jsontext.parse(text)
        except MalformedBody as error:
            self._wrong(path, str(error))
            return None

    def _wrong(self, path: str, expected: str) -> None:
        self._violations.append(Violation(path, expected))

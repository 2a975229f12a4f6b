"""Reads the messages that a server sends into the client's typed replies.

Pure. The plain classes have the fields of their messages, so one function fills them all. A reply that cannot be read
raises BadReply; fields and events that a newer server adds are passed over.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_origin, get_type_hints

from google.protobuf.message import Message

from .answers import (
    Answer,
    ChoiceAnswer,
    Decision,
    Diagnostics,
    NoulAnswer,
    Prewarmed,
    ScoreAnswer,
    Skipped,
    Usage,
)
from .chat import ChatDelta, ChatEvent, ChatFinished, ChatStarted, ChatToken
from .errors import BadReply
from .events import Accepted, Answered, Completed, Event, PrefixProgress, WasSkipped
from .info import Info
from .questions import Json
from .v1 import chat_pb2, decision_pb2, diagnostics_pb2, info_pb2

Plain = TypeVar("Plain")

_REASONS = {chat_pb2.FINISH_REASON_STOP: "stop", chat_pb2.FINISH_REASON_LENGTH: "length"}


def read_decision(reply: decision_pb2.DecideResponse) -> Decision:
    """The reply of `Decide`."""
    return Decision(
        model=reply.model,
        answers={each.question_id: read_answer(each) for each in reply.answers},
        skipped=tuple(read_skipped(each) for each in reply.skipped),
        usage=mirror(Usage, reply.usage),
        diagnostics=read_diagnostics(reply.diagnostics),
    )


def read_event(reply: decision_pb2.DecideStreamResponse) -> Event | None:
    """One event of `DecideStream`; None for one that this client does not know."""
    match reply.WhichOneof("event"):
        case "accepted":
            return mirror(Accepted, reply.accepted)
        case "prefix":
            return mirror(PrefixProgress, reply.prefix)
        case "answer":
            return Answered(read_answer(reply.answer))
        case "skipped":
            return WasSkipped(read_skipped(reply.skipped))
        case "completed":
            end = reply.completed
            return Completed(end.model, mirror(Usage, end.usage), read_diagnostics(end.diagnostics))
        case _:
            return None


def read_chat_event(reply: chat_pb2.ChatResponse) -> ChatEvent | None:
    """One event of `Chat`; None for one that this client does not know."""
    match reply.WhichOneof("event"):
        case "started":
            return mirror(ChatStarted, reply.started)
        case "delta":
            tokens = tuple(ChatToken(token.id, token.logprob) for token in reply.delta.tokens)
            return ChatDelta(reply.delta.text, tokens)
        case "finished":
            reason = _REASONS.get(reply.finished.finish_reason, "other")
            return mirror(ChatFinished, reply.finished, finish_reason=reason)
        case _:
            return None


def read_prewarmed(reply: decision_pb2.PrewarmResponse) -> Prewarmed:
    """The reply of `Prewarm`."""
    return mirror(Prewarmed, reply, diagnostics=read_diagnostics(reply.diagnostics))


def read_info(reply: info_pb2.GetInfoResponse) -> Info:
    """The reply of `GetInfo`."""
    return mirror(Info, reply)


def read_answer(answer: decision_pb2.Answer) -> Answer:
    """An answer of whichever kind it is."""
    name, mass = answer.question_id, answer.letter_mass
    match answer.WhichOneof("kind"):
        case "noul":
            return NoulAnswer(name, answer.noul.probability, mass)
        case "choice":
            choice = answer.choice
            named = {each.name: each.probability for each in choice.probabilities}
            return ChoiceAnswer(name, choice.choice, named, choice.confidence, mass)
        case "score":
            score = answer.score
            listed = tuple(each.probability for each in score.probabilities)
            levels = tuple(read_value(each.level) for each in score.probabilities)
            return ScoreAnswer(name, score.score, listed, levels, score.confidence, mass)
        case _:
            raise BadReply(f"The answer to {name!r} is of a kind that this client does not know.")


def read_skipped(skipped: diagnostics_pb2.Skipped) -> Skipped:
    """A question that was not asked."""
    was = skipped.was if skipped.HasField("was") else None
    return Skipped(skipped.question_id, skipped.because, was, tuple(skipped.wanted))


def read_diagnostics(reply: diagnostics_pb2.Diagnostics) -> Diagnostics:
    """How a decision ran."""
    skipped = tuple(read_skipped(each) for each in reply.skipped)
    return mirror(Diagnostics, reply, skipped=skipped)


def read_value(value: decision_pb2.Value) -> Json:
    """A value as the request had it."""
    if value.WhichOneof("kind") != "json":
        return value.text
    try:
        return json.loads(value.json)
    except ValueError:
        raise BadReply("The reply holds a value that is not JSON.") from None


def mirror(plain: type[Plain], message: Message, **given: Any) -> Plain:
    """A frozen class filled from the fields of the same names of a message; `given` fields are taken as they are.

    An absent optional field is None, and a field that is itself such a class is filled in the same way.
    """
    present = {name: _field(message, name, hint) for name, hint in _hints(plain).items() if name not in given}
    return plain(**present, **given)


def _hints(plain: type) -> dict[str, Any]:
    hints = get_type_hints(plain)
    # a field with a default, an event's tag, is the class's own
    return {each.name: hints[each.name] for each in fields(plain) if each.name != "kind"}


def _field(message: Message, name: str, hint: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return mirror(hint, getattr(message, name))
    if get_origin(hint) is tuple:
        return tuple(getattr(message, name))
    optional = hint == str | None
    return None if optional and not message.HasField(name) else getattr(message, name)

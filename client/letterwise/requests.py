"""Builds the messages that the client sends, from a caller's values, and names fields as the caller has them.

Pure. A value that cannot be sent raises InvalidRequest with the field's path; every other rule is the server's. Single
fields are `fields.py`'s, what chats have in common with decisions `serving.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from . import fields
from .chat import ChatMessage, Messages
from .errors import InvalidRequest, Violation
from .fields import invalid, text, value
from .questions import AskIf, Choice, Json, Noul, Option, Question, Questions, Score, listed
from .serving import AdapterName, ServiceClass, adapter_message, service_class_number
from .v1 import chat_pb2
from .v1 import decision_pb2 as pb

Samples: TypeAlias = int | Literal["auto"]
Ask: TypeAlias = str | Sequence[str]

_QUESTION_PATH = re.compile(r"questions\[(\d+)\]\.?(.*)")
_ASK_IF_PATH = re.compile(r"ask_if\[(\d+)\]")
# the server lowers `samples` to its own limit, which is far below what the field holds
_MOST_SAMPLES = 2**32 - 1
_QUESTION = "expected a Noul, Choice or Score"
_WANTED = "expected an answer: text, a bool for yes or no, or a level's index"


def decide_request(
    state: Json,
    questions: Questions,
    *,
    samples: Samples = 1,
    ask: Ask | None = None,
    adapter: AdapterName | None = None,
    service_class: ServiceClass | None = None,
    model: str | None = None,
) -> pb.DecideRequest:
    """A state and the questions about it, as one message."""
    try:
        return pb.DecideRequest(
            state=value(state, "state"),
            questions=[
                _question(each, text(name, f"questions[{i}].id"), f"questions[{i}]")
                for i, (name, each) in enumerate(_identified(questions))
            ],
            samples=_samples(samples),
            ask=_ask(ask),
            model=fields.model(model),
            adapter=adapter_message(adapter),
            service_class=service_class_number(service_class),
        )
    except InvalidRequest as refused:
        raise in_callers_paths(refused, questions) from None


def prewarm_request(
    state: Json,
    *,
    adapter: AdapterName | None = None,
    service_class: ServiceClass | None = None,
    model: str | None = None,
) -> pb.PrewarmRequest:
    """A state to read before its questions arrive."""
    return pb.PrewarmRequest(
        state=value(state, "state"),
        model=fields.model(model),
        adapter=adapter_message(adapter),
        service_class=service_class_number(service_class),
    )


def chat_request(
    messages: Messages,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    adapter: AdapterName | None = None,
    model: str | None = None,
) -> chat_pb2.ChatRequest:
    """A conversation to continue; what is None is left to the server."""
    return chat_pb2.ChatRequest(
        messages=_messages(messages),
        max_tokens=None if max_tokens is None else fields.count(max_tokens, "max_tokens"),
        temperature=None if temperature is None else fields.number(temperature, "temperature"),
        top_p=None if top_p is None else fields.number(top_p, "top_p"),
        seed=None if seed is None else fields.whole(seed, "seed", 0, 2**64 - 1),
        stop=_stop(stop),
        model=fields.model(model),
        adapter=adapter_message(adapter),
    )


def in_callers_paths(refused: InvalidRequest, questions: Questions) -> InvalidRequest:
    """The same refusal with `questions.team` for `questions[2]` where the caller gave the questions by id."""
    if not isinstance(questions, Mapping) or not refused.violations:
        return refused
    return InvalidRequest.of([Violation(named_path(v.field, questions), v.description) for v in refused.violations])


def question_part(question: Question, part: str) -> list[str]:
    """Where a Python question keeps the field `part` of its message."""
    found = _ASK_IF_PATH.match(part)
    if found and int(found[1]) < len(question.ask_if):
        return ["ask_if", str(list(question.ask_if)[int(found[1])])]
    # the id is the mapping's key
    return [] if part in ("", "id") else [part]


def named_path(
    path: str,
    questions: Mapping[str, Question],
    part_of: Callable[[Question, str], list[str]] = question_part,
) -> str:
    """A message's path, `questions[2].options[0].name`, with the question's id: `questions.team.options[0].name`.

    part_of: names the rest of the path. A path that leads to no question, or to an id that cannot be shown, stays.
    """
    found = _QUESTION_PATH.fullmatch(path)
    if found is None or int(found[1]) >= len(questions):
        return path
    name, question = list(questions.items())[int(found[1])]
    if not isinstance(name, str) or not name or not name.isprintable():
        return path
    return ".".join(["questions", name, *part_of(question, found[2])])


def _identified(questions: Questions) -> list[tuple[str, Question]]:
    """Each question with its id, in the caller's order."""
    if isinstance(questions, Mapping):
        return list(questions.items())
    each = None if isinstance(questions, Question) else listed(questions)
    if each is None:
        raise invalid("questions", "expected questions by id, {id: question}, or a list of questions with ids")
    return [(_own_id(question, f"questions[{i}]"), question) for i, question in enumerate(each)]


def _own_id(question: Any, path: str) -> str:
    if not isinstance(question, Noul | Choice | Score):
        raise invalid(path, _QUESTION)
    if question.id == "":
        raise invalid(f"{path}.id", 'expected an id, since the questions are a list: id="…", or questions by id')
    return question.id


def _question(question: Question, question_id: str, path: str) -> pb.Question:
    if not isinstance(question, Noul | Choice | Score):
        raise invalid(path, _QUESTION)
    built = pb.Question(
        id=question_id,
        instructions=value(question.instructions, f"{path}.instructions"),
        ask_if=_ask_if(question.ask_if, f"{path}.ask_if"),
    )
    match question:
        case Noul(yes=yes, no=no):
            built.noul.CopyFrom(pb.Noul(yes=_described(yes, f"{path}.yes"), no=_described(no, f"{path}.no")))
        case Choice(options=options):
            built.choice.CopyFrom(pb.Choice(options=_options(options, f"{path}.options")))
        case Score(levels=levels):
            built.score.CopyFrom(pb.Score(levels=_levels(levels, f"{path}.levels")))
    return built


def _options(options: object, path: str) -> list[pb.Option]:
    each = listed(options)
    if each is None:
        raise invalid(path, "expected options: a mapping of names to descriptions, or a list of names")
    return [_option(one, f"{path}[{i}]") for i, one in enumerate(each)]


def _option(option: object, path: str) -> pb.Option:
    if not isinstance(option, Option):
        raise invalid(path, "expected an option: its name as text, or an Option")
    return pb.Option(
        name=text(option.name, f"{path}.name"), description=_described(option.description, f"{path}.description")
    )


def _levels(levels: object, path: str) -> list[pb.Value]:
    each = listed(levels)
    if each is None:
        raise invalid(path, "expected a list of levels, lowest first")
    return [value(one, f"{path}[{i}]") for i, one in enumerate(each)]


def _ask_if(conditions: AskIf | None, path: str) -> list[pb.AskIf]:
    if conditions is None:
        return []
    if not isinstance(conditions, Mapping):
        raise invalid(path, "expected a mapping of question ids to wanted answers")
    return [
        pb.AskIf(question_id=text(key, f"{path}[{i}].question_id"), answers=_wanted(answers, f"{path}[{i}].answers"))
        for i, (key, answers) in enumerate(conditions.items())
    ]


def _wanted(answers: object, path: str) -> list[str]:
    each = listed(answers)
    if each is None:
        return [_answer(answers, path)]
    return [_answer(one, f"{path}[{i}]") for i, one in enumerate(each)]


def _answer(answer: object, path: str) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if isinstance(answer, int):
        return str(answer)
    return text(answer, path, _WANTED)


def _ask(ask: object) -> list[str]:
    if ask is None:
        return []
    each = [ask] if isinstance(ask, str) else listed(ask)
    if each is None:
        raise invalid("ask", "expected a question's id, or a list of ids")
    if not each:
        raise invalid("ask", "expected at least one question; leave it out to ask all")
    return [text(one, f"ask[{i}]") for i, one in enumerate(each)]


def _samples(samples: Samples) -> int:
    if samples == "auto":
        return 1
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise invalid("samples", 'expected a whole number of at least 1, or "auto"')
    return min(samples, _MOST_SAMPLES)


def _described(description: Json, path: str) -> pb.Value | None:
    """A description that may be left out."""
    return None if description is None else value(description, path)


def _messages(messages: object) -> list[chat_pb2.ChatMessage]:
    each = [ChatMessage("user", messages)] if isinstance(messages, str) else listed(messages)
    if each is None:
        raise invalid("messages", "expected the user's text, or a list of messages")
    return [_message(one, f"messages[{i}]") for i, one in enumerate(each)]


def _message(message: object, path: str) -> chat_pb2.ChatMessage:
    if isinstance(message, Mapping) and set(message) == {"role", "content"}:
        message = ChatMessage(message["role"], message["content"])
    if not isinstance(message, ChatMessage):
        raise invalid(path, 'expected a ChatMessage or {"role": …, "content": …}')
    role, content = text(message.role, f"{path}.role"), text(message.content, f"{path}.content")
    return chat_pb2.ChatMessage(role=role, content=content)


def _stop(stop: object) -> list[str]:
    each = [stop] if isinstance(stop, str) else listed(stop)
    if each is None:
        raise invalid("stop", "expected a text that ends the message, or a list of them")
    return [text(one, f"stop[{i}]") for i, one in enumerate(each)]

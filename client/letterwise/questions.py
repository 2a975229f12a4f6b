"""Typed questions, as a caller writes them.

Owns the shapes only: a value typed `Json` is text or anything that `json.dumps` takes, with the order of its keys kept.
Whether a question makes sense is the server's to say. Knows nothing of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# Text, or a value that json.dumps takes.
Json: TypeAlias = Any
# An answer of another question: yes or no (or a bool), an option's name, a level's text or index.
Wanted: TypeAlias = str | bool | int
# The answers of earlier questions that let a question be asked; one answer may stand without its list.
AskIf: TypeAlias = Mapping[str, Wanted | Sequence[Wanted]]


@dataclass(frozen=True)
class Option:
    """One option of a choice; `description` says what it means, None for nothing."""

    name: str
    description: Json = None


class Question:
    """What the three kinds of question share; make one of them."""

    instructions: Json
    ask_if: AskIf
    id: str


@dataclass(frozen=True)
class Noul(Question):
    """A yes or no question; `yes` and `no` say when each is the answer, None for the standard words."""

    instructions: Json
    yes: Json = None
    no: Json = None
    ask_if: AskIf = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, init=False)
class Choice(Question):
    """One of several options, in the order in which the model reads them."""

    instructions: Json
    options: tuple[Option, ...]
    ask_if: AskIf
    id: str

    def __init__(
        self,
        instructions: Json,
        options: Mapping[str, Json] | Iterable[str | Option],
        *,
        ask_if: AskIf | None = None,
        id: str = "",
    ) -> None:
        """`options` maps names to descriptions, or lists names or Options."""
        object.__setattr__(self, "instructions", instructions)
        object.__setattr__(self, "options", _options(options))
        object.__setattr__(self, "ask_if", {} if ask_if is None else ask_if)
        object.__setattr__(self, "id", id)


@dataclass(frozen=True)
class Score(Question):
    """One of several ordered levels, lowest first; any JSON value may be a level."""

    instructions: Json
    levels: Sequence[Json]
    ask_if: AskIf = field(default_factory=dict)
    id: str = ""


# Questions with their ids in a mapping's keys, or in the questions themselves.
Questions: TypeAlias = Mapping[str, Question] | Iterable[Question]


def listed(values: object) -> list[Any] | None:
    """A caller's list as one; None for what is none: text is not taken apart, and a set has no order."""
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
        return None
    return list(values)


def _options(options: Any) -> Any:
    """The options as a tuple; what is no list stays as it is, for the request to refuse with its field's path."""
    if isinstance(options, Mapping):
        return tuple(Option(name, description) for name, description in options.items())
    each = listed(options)
    return options if each is None else tuple(Option(one) if isinstance(one, str) else one for one in each)

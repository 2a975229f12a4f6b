"""The words that the model reads: letters, option lines, and the whole user message of a pass.

Owns every byte of the prompt, in both styles. A change of any of them raises `PROMPT_FORMAT_VERSION`.
Pure functions on any thread; knows nothing of chat templates, tokens or which options share a pass.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .request import Choice, Json, Noul, Question, Score

PROMPT_FORMAT_VERSION = 1
LETTERS = string.ascii_uppercase + string.ascii_lowercase
STYLES = ("bracket", "plain")

_TRAINED_FOR_BRACKETS = "openjev"
_RATE = " Rate along the ordered levels below (lowest first)."
_CLOSING = "Answer with the letter of the best option only."
_YES = "The statement is true."
_NO = "The statement is false."


@dataclass(frozen=True)
class Line:
    """One listed option, before it gets its letter; an empty `description` is none."""

    name: str
    description: str = ""


def resolve_style(setting: str, names: Iterable[str]) -> str:
    """The style that `auto` means for a model known by `names`: its path, id and alias.

    Raises ValueError for a setting that is neither `auto` nor a style.
    """
    if setting in STYLES:
        return setting
    if setting != "auto":
        raise ValueError(f"the prompt style must be auto, {' or '.join(STYLES)}")
    return "bracket" if any(_TRAINED_FOR_BRACKETS in name.lower() for name in names) else "plain"


def state_text(state: Json) -> str:
    """The state as the model reads it: an object as JSON, every other value as Python prints it."""
    if isinstance(state, dict):
        return json.dumps(state, ensure_ascii=False)
    return str(state)


def state_message(state: Json) -> str:
    """The start of the user message that every pass of a request shares."""
    return f"State:\n{state_text(state)}"


def description_text(value: Json) -> str:
    """A description or a level as the model reads it: text as it is, null as nothing, the rest as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def instructions_text(question: Question) -> str:
    """A question's instructions as the model reads them; a score's ask for a rating."""
    return str(question.instructions) + (_RATE if isinstance(question, Score) else "")


def listed_options(question: Question) -> tuple[Line, ...]:
    """The options of a question of any kind, in the order in which they are listed."""
    match question:
        case Noul():
            return Line("yes", description_text(question.yes) or _YES), Line("no", description_text(question.no) or _NO)
        case Choice():
            return tuple(Line(option.name, description_text(option.description)) for option in question.options)
        case Score():
            return tuple(Line(str(index), description_text(level)) for index, level in enumerate(question.levels))


def option_line(style: str, letter: str, line: Line) -> str:
    """One option as a line of the prompt, without its line break."""
    if style == "bracket":
        return f"[{letter}] {line.name}: {line.description}"
    return f"{letter}) {line.name}: {line.description}" if line.description else f"{letter}) {line.name}"


def pass_text(head: str, instructions: str, lines: Sequence[Line], style: str) -> str:
    """The user message of one pass; `head` is the request's `state_message`, `lines` at most 52."""
    listed = "\n".join(option_line(style, letter, line) for letter, line in zip(LETTERS, lines, strict=False))
    return f"{head}\n\nQuestion: {instructions}\nOptions:\n{listed}\n\n{_CLOSING}"

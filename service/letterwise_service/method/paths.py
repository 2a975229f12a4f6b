"""How each door names a field: `questions[2].options[0].name` in gRPC, `questions.route.criteria.billing` in Jev.

Owns field paths, and nothing of what is wrong with a field. Pure functions on any thread.
"""

from __future__ import annotations

from typing import Protocol

from .request import Choice, Question, Score

SHOWN_CHARACTERS = 60


def shown(name: str) -> str:
    """An id or a name as an error may show it: cut to 60 characters, unprintable ones escaped."""
    cut = name if len(name) <= SHOWN_CHARACTERS else name[: SHOWN_CHARACTERS - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in cut)


class Paths(Protocol):
    """Names fields of a request; questions, options, levels and answers are counted from 0."""

    @property
    def empty_ids(self) -> bool: ...  # whether this door takes a question id of no characters
    def question(self, index: int, question: Question) -> str: ...
    def id(self, index: int, question: Question) -> str: ...
    def options(self, index: int, question: Question) -> str: ...
    def option(self, index: int, question: Question, option: int, part: str) -> str: ...
    def level(self, index: int, question: Question, level: int) -> str: ...
    def outcome(self, index: int, question: Question, outcome: str) -> str: ...
    def ask_if(self, index: int, question: Question, dependency: int) -> str: ...
    def ask_if_answer(self, index: int, question: Question, dependency: int, answer: int) -> str: ...


class GrpcPaths:
    """The paths of `letterwise.v1.DecideRequest`, its oneof names left out."""

    empty_ids = False

    def question(self, index: int, question: Question) -> str:
        return f"questions[{index}]"

    def id(self, index: int, question: Question) -> str:
        return f"questions[{index}].id"

    def options(self, index: int, question: Question) -> str:
        return f"questions[{index}].{'levels' if isinstance(question, Score) else 'options'}"

    def option(self, index: int, question: Question, option: int, part: str) -> str:
        return f"questions[{index}].options[{option}].{part}"

    def level(self, index: int, question: Question, level: int) -> str:
        return f"questions[{index}].levels[{level}]"

    def outcome(self, index: int, question: Question, outcome: str) -> str:
        return f"questions[{index}].{outcome}"

    def ask_if(self, index: int, question: Question, dependency: int) -> str:
        return f"questions[{index}].ask_if[{dependency}]"

    def ask_if_answer(self, index: int, question: Question, dependency: int, answer: int) -> str:
        return f"{self.ask_if(index, question, dependency)}.answers[{answer}]"


class JevPaths:
    """The paths of a Jev JSON body, where questions and options go by name."""

    empty_ids = True

    def question(self, index: int, question: Question) -> str:
        return f"questions.{shown(question.id)}"

    def id(self, index: int, question: Question) -> str:
        return self.question(index, question)

    def options(self, index: int, question: Question) -> str:
        return f"{self.question(index, question)}.criteria"

    def option(self, index: int, question: Question, option: int, part: str) -> str:
        name = question.options[option].name if isinstance(question, Choice) else str(option)
        return f"{self.options(index, question)}.{shown(name)}"

    def level(self, index: int, question: Question, level: int) -> str:
        return f"{self.options(index, question)}[{level}]"

    def outcome(self, index: int, question: Question, outcome: str) -> str:
        return f"{self.options(index, question)}.{'true' if outcome == 'yes' else 'false'}"

    def ask_if(self, index: int, question: Question, dependency: int) -> str:
        return f"{self.question(index, question)}.ask_if.{shown(list(question.ask_if)[dependency])}"

    def ask_if_answer(self, index: int, question: Question, dependency: int, answer: int) -> str:
        return f"{self.ask_if(index, question, dependency)}[{answer}]"


class OpenAIPaths(GrpcPaths):
    """The paths of an OpenAI decisions body; its questions have no conditions and its predicates no descriptions."""

    empty_ids = True

    def options(self, index: int, question: Question) -> str:
        return f"questions[{index}].{'levels' if isinstance(question, Score) else 'choices'}"

    def option(self, index: int, question: Question, option: int, part: str) -> str:
        return f"questions[{index}].choices[{option}].{'value' if part == 'name' else part}"

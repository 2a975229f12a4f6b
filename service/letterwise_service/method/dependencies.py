"""What one question's answer means to another: answer names, conditions that fail, stages and cycles.

Owns `ask_if`. Pure functions on any thread; knows nothing of prompts, scores or passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from .answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer, Skipped
from .calibration import most_probable
from .prompt import description_text
from .request import Choice, DecisionRequest, Noul, Question


def asked_questions(request: DecisionRequest) -> tuple[Question, ...]:
    """The questions to answer, in the request's order."""
    if request.ask is None:
        return request.questions
    return tuple(question for question in request.questions if question.id in request.ask)


def answer_names(question: Question) -> tuple[str, ...]:
    """What `ask_if` may want of a question: yes and no, option names, or level names.

    A level's name is its text; where two levels share a text, each goes by its index.
    """
    if isinstance(question, Noul):
        return "yes", "no"
    if isinstance(question, Choice):
        return tuple(option.name for option in question.options)
    texts = [description_text(level) for level in question.levels]
    shared = Counter(texts)
    return tuple(text if shared[text] == 1 else str(index) for index, text in enumerate(texts))


def answered_as(question: Question, answer: Answer) -> str:
    """The name of what a question was answered with."""
    match answer:
        case NoulAnswer():
            return "yes" if answer.probability >= 0.5 else "no"
        case ChoiceAnswer():
            return answer.choice
        case ScoreAnswer():
            return answer_names(question)[most_probable(answer.probabilities)]


def unmet(
    question: Question, questions: Mapping[str, Question], outcomes: Mapping[str, Answer | Skipped]
) -> Skipped | None:
    """The first condition of a question that does not hold; `outcomes` must have all that it names."""
    for dependency, wanted in question.ask_if.items():
        outcome = outcomes[dependency]
        was = None if isinstance(outcome, Skipped) else answered_as(questions[dependency], outcome)
        if was is None or was not in wanted:
            return Skipped(question.id, dependency, was, tuple(wanted))
    return None


def stage_count(questions: Sequence[Question]) -> int:
    """One, plus one for each link of the longest `ask_if` chain; 0 without questions."""
    named = {question.id: question for question in questions}
    depths: dict[str, int] = {}
    for id in TopologicalSorter(_edges(questions)).static_order():
        depths[id] = 1 + max((depths[dependency] for dependency in _links(named[id], named)), default=0)
    return max(depths.values(), default=0)


def find_cycle(questions: Sequence[Question]) -> tuple[str, ...] | None:
    """The ids of one `ask_if` cycle, first id repeated at the end; a question that names itself is none."""
    try:
        TopologicalSorter(_edges(questions)).prepare()
    except CycleError as error:
        return tuple(reversed(error.args[1]))
    return None


def _edges(questions: Sequence[Question]) -> dict[str, list[str]]:
    named = {question.id: question for question in questions}
    return {question.id: _links(question, named) for question in questions}


def _links(question: Question, named: Mapping[str, Question]) -> list[str]:
    return [dependency for dependency in question.ask_if if dependency in named and dependency != question.id]

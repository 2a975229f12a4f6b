"""The rules that every front door holds a request to, with each broken one named by the door's own path.

Owns what is allowed in a request. Pure functions on any thread; knows nothing of protobuf, JSON bodies or tokens
(length in tokens is the engine's to check). Descriptions never quote a state, instructions or descriptions.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import InvalidRequest, Unsupported, Violation
from .composition import MAX_OPTIONS
from .dependencies import answer_names, asked_questions, find_cycle
from .images import holds_image
from .jsontext import has_surrogate, value_problem
from .paths import Paths, shown
from .request import BATCH, INTERACTIVE, Adapter, Choice, DecisionRequest, Json, Noul, Question, Score

MAX_ID_CHARACTERS = 256
# An error travels in headers, which are small: a request wrong in more places names the first of them.
MAX_VIOLATIONS = 10
MAX_ADAPTER_SCALE = 100

_LINE_SEPARATORS = ("Cc", "Zl", "Zp")


@dataclass(frozen=True)
class Limits:
    """How large a request may be. More `samples` than `max_samples` are lowered to it, never an error."""

    max_questions: int = 256
    max_options: int = 2048
    max_samples: int = 32

    def samples(self, wanted: int) -> int:
        """The option orders that are read when `wanted` are asked for."""
        return min(wanted, self.max_samples)


DEFAULT_LIMITS = Limits()


def check(request: DecisionRequest, paths: Paths, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raises InvalidRequest with the first ten violations, or Unsupported for a state that holds an image."""
    refuse_image(request.state)
    if broken := violations(request, paths, limits):
        raise InvalidRequest(broken)


def check_state(state: Json, adapter: Adapter | None = None) -> None:
    """The same for a state that comes alone."""
    refuse_image(state)
    if broken := [*_of_state(state), *adapter_violations(adapter)]:
        raise InvalidRequest(broken)


def adapter_violations(adapter: Adapter | None) -> Iterator[Violation]:
    """What is wrong with any request's adapter in itself; whether there is one of that name is the engine's to say."""
    if adapter is None:
        return
    if not 1 <= len(adapter.name) <= MAX_ID_CHARACTERS or has_surrogate(adapter.name):
        yield Violation("adapter.name", "expected the name of an adapter")
    if not math.isfinite(adapter.scale) or abs(adapter.scale) > MAX_ADAPTER_SCALE:
        yield Violation("adapter.scale", f"expected a number from -{MAX_ADAPTER_SCALE} to {MAX_ADAPTER_SCALE}")


def refuse_image(state: Json) -> None:
    """Raises Unsupported when the state holds an image."""
    if holds_image(state):
        raise Unsupported("state: images are not read; give their content as text")


def violations(request: DecisionRequest, paths: Paths, limits: Limits = DEFAULT_LIMITS) -> list[Violation]:
    """What is wrong with a request, field by field in its own order; the first ten, none when it is sound.

    What questions say of each other is looked at once each is sound in itself.
    """
    alone = list(islice(_of_request(request, paths, limits), MAX_VIOLATIONS))
    return alone or list(islice(_of_links(request, paths), MAX_VIOLATIONS))


def _of_request(request: DecisionRequest, paths: Paths, limits: Limits) -> Iterator[Violation]:
    yield from _of_state(request.state)
    if isinstance(request.samples, bool) or not isinstance(request.samples, int) or request.samples < 1:
        yield Violation("samples", "expected an integer of at least 1")
    yield from adapter_violations(request.adapter)
    if request.service_class not in (INTERACTIVE, BATCH):
        yield Violation("service_class", f"expected {INTERACTIVE} or {BATCH}")
    if not request.questions:
        yield Violation("questions", "expected at least one question")
    if len(request.questions) > limits.max_questions:
        yield Violation("questions", f"expected at most {limits.max_questions} questions, not {len(request.questions)}")
        return
    yield from _of_ids(request, paths)
    for index, question in enumerate(request.questions):
        yield from _of_question(index, question, paths, limits)


def _of_links(request: DecisionRequest, paths: Paths) -> Iterator[Violation]:
    yield from _of_conditions(request, paths)
    yield from _of_cycles(request, paths)
    yield from _of_ask(request)


def _of_state(state: Json) -> Iterator[Violation]:
    if state is None:
        yield Violation("state", "expected a state: text, or any JSON value but null")
    elif problem := value_problem(state):
        yield Violation("state", problem)


def _of_ids(request: DecisionRequest, paths: Paths) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, question in enumerate(request.questions):
        field = paths.id(index, question)
        if not question.id and not paths.empty_ids:
            yield Violation(field, "expected an id that is not empty")
        if len(question.id) > MAX_ID_CHARACTERS:
            yield Violation(field, f"expected an id of at most {MAX_ID_CHARACTERS} characters")
        if has_surrogate(question.id):
            yield Violation(field, "expected an id without lone surrogates")
        if question.id in seen:
            yield Violation(field, f"expected an id that no other question has, not {shown(question.id)!r} again")
        seen.add(question.id)


def _of_question(index: int, question: Question, paths: Paths, limits: Limits) -> Iterator[Violation]:
    yield from _of_instructions(f"{paths.question(index, question)}.instructions", question.instructions)
    if isinstance(question, Noul):
        yield from _of_value(paths.outcome(index, question, "yes"), question.yes)
        yield from _of_value(paths.outcome(index, question, "no"), question.no)
        return
    count = len(question.options if isinstance(question, Choice) else question.levels)
    most = min(limits.max_options, MAX_OPTIONS)
    what = "option" if isinstance(question, Choice) else "level"
    if not 1 <= count <= most:
        wanted = f"at most {most} {what}s, not {count}" if count else f"at least one {what}"
        yield Violation(paths.options(index, question), f"expected {wanted}")
    elif isinstance(question, Choice):
        yield from _of_options(index, question, paths)
    else:
        yield from _of_levels(index, question, paths)


def _of_instructions(field: str, instructions: Json) -> Iterator[Violation]:
    if instructions is None:
        yield Violation(field, "expected instructions: what is asked of the state")
    yield from _of_value(field, instructions)


def _of_value(field: str, value: Json) -> Iterator[Violation]:
    if problem := value_problem(value):
        yield Violation(field, problem)


def _of_options(index: int, question: Choice, paths: Paths) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for place, option in enumerate(question.options):
        field = paths.option(index, question, place, "name")
        if problem := _name_problem(option.name):
            yield Violation(field, problem)
        elif option.name in seen:
            yield Violation(field, f"expected a name that no other option has, not that of option {seen[option.name]}")
        seen.setdefault(option.name, place)
        yield from _of_value(paths.option(index, question, place, "description"), option.description)


def _name_problem(name: str) -> str | None:
    if not name.strip():
        return "expected a name that is not blank"
    if any(unicodedata.category(character) in _LINE_SEPARATORS for character in name):
        return "expected a name without line breaks and control characters"
    return "expected a name without lone surrogates" if has_surrogate(name) else None


def _of_levels(index: int, question: Score, paths: Paths) -> Iterator[Violation]:
    for place, level in enumerate(question.levels):
        yield from _of_value(paths.level(index, question, place), level)


def _of_conditions(request: DecisionRequest, paths: Paths) -> Iterator[Violation]:
    named = {question.id: question for question in request.questions}
    known: dict[str, frozenset[str]] = {}
    for index, question in enumerate(request.questions):
        for place, (dependency, wanted) in enumerate(question.ask_if.items()):
            if problem := _condition_problem(question, dependency, wanted, named):
                yield Violation(paths.ask_if(index, question, place), problem)
                continue
            if dependency not in known:
                known[dependency] = frozenset(answer_names(named[dependency]))
            for number in (number for number, name in enumerate(wanted) if name not in known[dependency]):
                problem = f"expected an answer that {shown(dependency)!r} can give, not {shown(wanted[number])!r}"
                yield Violation(paths.ask_if_answer(index, question, place, number), problem)


def _condition_problem(
    question: Question, dependency: str, wanted: Sequence[str], named: Mapping[str, Question]
) -> str | None:
    if dependency == question.id:
        return "expected another question, not the question itself"
    if dependency not in named:
        return f"expected the id of a question of this request, not {shown(dependency)!r}"
    if len(set(wanted)) < len(wanted):
        return "expected each answer once"
    return None if wanted else "expected at least one answer"


def _of_cycles(request: DecisionRequest, paths: Paths) -> Iterator[Violation]:
    cycle = find_cycle(request.questions)
    if cycle is None:
        return
    index = min(index for index, question in enumerate(request.questions) if question.id in cycle)
    path = " → ".join(repr(shown(id)) for id in cycle[:8])
    more = " → …" if len(cycle) > 8 else ""
    field = f"{paths.question(index, request.questions[index])}.ask_if"
    yield Violation(field, f"expected no cycle of questions, not {path}{more}")


def _of_ask(request: DecisionRequest) -> Iterator[Violation]:
    if request.ask is None:
        return
    if not request.ask:
        yield Violation("ask", "expected at least one question id")
    known = {question.id for question in request.questions}
    for place, id in enumerate(request.ask):
        if id not in known:
            yield Violation(f"ask[{place}]", f"expected the id of a question of this request, not {shown(id)!r}")
        elif id in request.ask[:place]:
            yield Violation(f"ask[{place}]", f"expected each id once, not {shown(id)!r} again")
    for question in asked_questions(request):
        for dependency in question.ask_if:
            if dependency in known and dependency not in request.ask:
                wanted = f"expected {shown(dependency)!r} too, which {shown(question.id)!r} depends on"
                yield Violation("ask", wanted)

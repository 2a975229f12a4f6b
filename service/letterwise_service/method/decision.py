"""A whole decision: its questions in stages, the passes that may be read now, the outcomes as they are known.

Owns the order of things within one request. Runs on the thread that drives it, which is free to read passes in
any order: the answers do not depend on it. Knows nothing of tokens, models or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .answers import Answer, Skipped
from .dependencies import asked_questions, stage_count, unmet
from .passes import Pass, QuestionReader, Reading
from .prompt import state_message
from .questions import Frame, first_passes, longest_winners_pass, pass_count, read_question
from .request import DecisionRequest, Question

__all__ = ["Decision", "Outcome", "Pass", "QuestionReader", "Reading", "bound_passes", "count_passes"]

Outcome: TypeAlias = Answer | Skipped


@dataclass
class _Round:
    """The passes that a question waits for, by index, and the readings that have come."""

    reader: QuestionReader
    passes: dict[int, Pass]
    readings: dict[int, Reading] = field(default_factory=dict)

    def waits_for(self, one: Pass) -> bool:
        return one.index not in self.readings and self.passes.get(one.index) == one

    def in_order(self) -> tuple[Reading, ...]:
        return tuple(self.readings[index] for index in self.passes)


class Decision:
    """A request's questions on their way to answers; driven by whoever can read passes.

        decision = Decision(request, style="plain")
        while passes := decision.ready():            # passes that may be read now, each handed out once
            for p in passes:
                for outcome in decision.take(p, read(p)):   # answers and skips, the moment they are known
                    ...

    The request must have passed validation.
    """

    def __init__(self, request: DecisionRequest, *, style: str) -> None:
        self._frame = Frame(state_message(request.state), style, request.samples, request.calibration)
        self._questions = {question.id: question for question in asked_questions(request)}
        self._waiting = list(self._questions.values())
        self._rounds: dict[str, _Round] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._unread: list[Pass] = []
        self._passes = 0
        self._opening = self._advance()

    def open(self) -> list[Outcome]:
        """Outcomes known before any pass is read; none, for a request that passed validation."""
        return list(self._opening)

    def ready(self) -> list[Pass]:
        """The passes that may be read now and were not handed out before, in the request's order."""
        unread, self._unread = self._unread, []
        return unread

    def take(self, read: Pass, reading: Reading) -> list[Outcome]:
        """Takes one pass's reading; what is known by it: at most one answer, then the skips that follow.

        Raises ReadFailed for scores that are missing or not finite, ValueError for a pass that is not waited for.
        """
        now = self._rounds.get(read.question_id)
        if now is None or not now.waits_for(read):
            raise ValueError(f"pass {read.index} is not waited for")
        now.readings[read.index] = reading
        if len(now.readings) < len(now.passes):
            return []
        answer = self._next_round(read.question_id, now)
        return [] if answer is None else [answer, *self._advance()]

    @property
    def stages(self) -> int:
        """Stages that the asked questions form: one, and one more for each link of the longest `ask_if` chain."""
        return stage_count(list(self._questions.values()))

    @property
    def finished(self) -> bool:
        """Whether every asked question has its outcome."""
        return len(self._outcomes) == len(self._questions)

    def _next_round(self, id: str, now: _Round) -> Answer | None:
        try:
            passes = now.reader.send(now.in_order())
        except StopIteration as done:
            answer: Answer = done.value
            del self._rounds[id]
            self._outcomes[id] = answer
            return answer
        self._begin_round(id, now.reader, passes)
        return None

    def _advance(self) -> list[Outcome]:
        """Starts or skips every waiting question whose dependencies are known, until nothing changes."""
        skips: list[Outcome] = []
        while known := [q for q in self._waiting if all(id in self._outcomes for id in q.ask_if)]:
            for question in known:
                self._waiting.remove(question)
                skip = unmet(question, self._questions, self._outcomes)
                if skip is None:
                    self._start(question)
                else:
                    self._outcomes[question.id] = skip
                    skips.append(skip)
        return skips

    def _start(self, question: Question) -> None:
        reader = read_question(question, self._frame)
        self._begin_round(question.id, reader, next(reader))

    def _begin_round(self, id: str, reader: QuestionReader, passes: tuple[Pass, ...]) -> None:
        numbered = {index: replace(one, index=index) for index, one in enumerate(passes, start=self._passes)}
        self._passes += len(numbered)
        self._rounds[id] = _Round(reader, numbered)
        self._unread.extend(numbered.values())


def bound_passes(request: DecisionRequest, *, style: str) -> Sequence[Pass]:
    """Every pass that the decision can send, for admission: one order of each chunk, all orders being as long.

    A winners pass is bounded by the longest option of each chunk.
    """
    frame = Frame(state_message(request.state), style, request.samples)
    bound: list[Pass] = []
    for question in asked_questions(request):
        bound.extend(first_passes(question, frame))
        final = longest_winners_pass(question, frame)
        bound.extend([final] if final else [])
    return [replace(one, index=index) for index, one in enumerate(bound)]


def count_passes(request: DecisionRequest) -> int:
    """How many passes the decision sends when no question is skipped: orders and winners included."""
    return sum(pass_count(question, request.samples) for question in asked_questions(request))

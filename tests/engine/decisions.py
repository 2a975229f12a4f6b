"""Decisions taken step by step on a real tiny model, for the tests of jobs: questions, jobs and what serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from letterwise_service.engine.backend import mx
from letterwise_service.engine.budgets import Admission, Budgets
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.steps import Served
from letterwise_service.engine.store.prefixes import PrefixStore
from letterwise_service.method.answers import Answer, Skipped
from letterwise_service.method.request import INTERACTIVE, Choice, DecisionRequest, Noul, Option, Question, Score
from tests.engine.conftest import Heard
from tests.tiny import byte_tokenizer

TOKENS = PromptTokens(byte_tokenizer())
LATE = Noul("late", "Is it late?")
WHICH = Choice("which", "Which one?", tuple(Option(f"o{i}", "some words" if i % 2 else None) for i in range(5)))
BAD = Score("bad", "How bad?", ("low", {"level": 2}, "high"))
LONG_STATE = "A parcel of books arrived two days late. " * 10


def service(reader: Reader, *, tier: str = "exact", records: int = 8) -> Served:
    head = replace(reader.manner.head, letter_ids=TOKENS.letter_ids)
    if head.rows is not None:
        weight = head.trunk.layer.weight  # type: ignore[union-attr]
        head = replace(head, rows=weight[mx.array(TOKENS.letter_ids)].astype(mx.float32))
    reading = Reader(reader.model, replace(reader.manner, head=head), reader._streams)
    store = PrefixStore(tier=tier, salt="test", max_records=records, budget_bytes=1 << 30)
    return Served("tiny", "plain", reading, TOKENS, store)


def make(
    *questions: Question,
    state: Any = LONG_STATE,
    samples: int = 1,
    seconds: float = 60.0,
    caller: float | None = None,
    service_class: str = INTERACTIVE,
    also: Callable[[Any], None] | None = None,
) -> tuple[Job, Heard]:
    heard = Heard(also)
    admission = Admission(TOKENS, Budgets(100_000, 100_000), "plain")
    request = DecisionRequest(state, questions, samples=samples, service_class=service_class)
    permit = admission.admit(request) if questions else admission.admit_state(state, service_class=service_class)
    return Job(permit, heard, seconds, caller), heard


def finish(job: Job, served: Served) -> None:
    job.start(served)
    while not job.advance():
        pass


def decide(served: Served, *questions: Question, **settings: Any) -> dict[str, Answer | Skipped]:
    job, heard = make(*questions, **settings)
    finish(job, served)
    return heard.outcomes()


def unpinned(served: Served) -> bool:
    """Whether no job holds anything of the store, which is whole."""
    served.store.check(idle=True)
    return served.store._shelf.pins() == 0

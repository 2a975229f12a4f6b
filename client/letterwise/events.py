"""A decision's events, as a union of frozen classes tagged by `kind`.

The order is: accepted; prefix progress, if any; an answer or a skip for each question; completed. A stream that ends in
another way raises. Pure data; knows nothing of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .answers import Answer, Decision, Diagnostics, Skipped, Usage


@dataclass(frozen=True)
class Accepted:
    """The decision was admitted, with the work planned; an upper bound while questions may be skipped."""

    passes: int
    prompt_tokens: int
    kind: Literal["accepted"] = "accepted"


@dataclass(frozen=True)
class PrefixProgress:
    """`done_tokens` of the state's `total_tokens` are ready, `reused_tokens` of them kept from before."""

    done_tokens: int
    total_tokens: int
    reused_tokens: int
    kind: Literal["prefix"] = "prefix"


@dataclass(frozen=True)
class Answered:
    """A question's last pass was read."""

    answer: Answer
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True)
class WasSkipped:
    """A question will not be asked."""

    skipped: Skipped
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True)
class Completed:
    """The decision is complete: the last event."""

    model: str
    usage: Usage
    diagnostics: Diagnostics
    kind: Literal["completed"] = "completed"


Event: TypeAlias = Accepted | PrefixProgress | Answered | WasSkipped | Completed


def gather(events: Iterable[Event], order: Sequence[str] = ()) -> Decision:
    """The decision that a whole stream of events tells; the same that a unary call replies.

    order: the request's question ids, to put answers and skips in; otherwise they stay as they came.
    Raises ValueError when the completed event is missing.
    """
    answers: list[Answer] = []
    skipped: list[Skipped] = []
    for event in events:
        match event:
            case Answered(answer=answer):
                answers.append(answer)
            case WasSkipped(skipped=skip):
                skipped.append(skip)
            case Completed(model=model, usage=usage, diagnostics=diagnostics):
                place = {question_id: index for index, question_id in enumerate(order)}
                answers.sort(key=lambda answer: place.get(answer.id, len(place)))
                skipped.sort(key=lambda skip: place.get(skip.id, len(place)))
                return Decision(model, {each.id: each for each in answers}, tuple(skipped), usage, diagnostics)
    raise ValueError("the stream ended without its completed event")

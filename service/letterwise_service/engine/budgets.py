"""Admission: what a request will need, checked against the context and the memory before it is queued.

Any thread. A `Permit` is the proof, and carries the ids that were tokenised on the way; nothing is queued or run
without one. Knows tokens and bytes, and nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import TooLong
from ..method.decision import Decision, bound_passes, count_passes
from ..method.prompt import state_message
from ..method.request import DecisionRequest, Json
from .packing import FORWARD_TOKENS
from .tokens import Encoded, PromptTokens, common_start

Ids: TypeAlias = tuple[int, ...]
# Every pass continues the state with the same words, so any continuation splits the prompt at the same place.
_ANY_QUESTION = "\n\nQuestion: Is it so?\nOptions:\n"


@dataclass(frozen=True)
class Permit:
    """An admitted decision, or an admitted state alone (`request` None: a prewarm).

    tails: the ids after the prefix of every pass whose text was known beforehand, by that text.
    passes, prompt_tokens: planned; questions that come to be skipped make them fewer.
    """

    request: DecisionRequest | None
    prefix: Ids
    tails: Mapping[str, Ids]
    passes: int
    prompt_tokens: int
    neutralized: int


@dataclass(frozen=True)
class Budgets:
    """How long a prompt may be. `memory_tokens`: what fits beside the model, `context_tokens`: what it was made for."""

    context_tokens: int
    memory_tokens: int

    def check(self, tokens: int) -> None:
        """Raises TooLong unless a prompt of `tokens` fits both with room for one forward past it."""
        for limit, what in (
            (self.context_tokens, "the model's context"),
            (self.memory_tokens, "the memory left beside the model"),
        ):
            if tokens + FORWARD_TOKENS > limit:
                raise TooLong(
                    f"the longest prompt has {tokens} tokens; with {FORWARD_TOKENS} to spare, {what} takes {limit}",
                    tokens=tokens,
                    limit_tokens=limit - FORWARD_TOKENS,
                )


class Admission:
    """Turns requests into permits. `style`: the prompt style, resolved."""

    def __init__(self, tokens: PromptTokens, budgets: Budgets, style: str) -> None:
        self._tokens = tokens
        self._budgets = budgets
        self._style = style

    def admit(self, request: DecisionRequest) -> Permit:
        """Tokenises every pass that can be known and bounds the rest. Raises TooLong."""
        bound = [one.text for one in bound_passes(request, style=self._style)]
        first = [one.text for one in Decision(request, style=self._style).ready()]
        texts = list(dict.fromkeys([*bound, *first]))
        state = state_message(request.state)
        opening, encoded = self._tokens.opening(state), self._tokens.messages(texts)
        self._budgets.check(max(len(e.ids) for e in encoded))
        prefix = _prefix(opening, encoded[0])
        lengths = dict(zip(texts, (len(e.ids) for e in encoded), strict=True))
        return Permit(
            request=request,
            prefix=prefix,
            tails={text: _tail(prefix, e) for text, e in zip(texts, encoded, strict=True)},
            passes=count_passes(request),
            prompt_tokens=sum(lengths[text] for text in bound) * request.samples,
            neutralized=_count_neutralized(opening, encoded[: len(dict.fromkeys(bound))]),
        )

    def admit_state(self, state: Json) -> Permit:
        """A permit to read a state's prefix alone. Raises TooLong."""
        message = state_message(state)
        opening = self._tokens.opening(message)
        prefix = _prefix(opening, self._tokens.messages([message + _ANY_QUESTION])[0])
        self._budgets.check(len(prefix))
        return Permit(None, prefix, {}, passes=0, prompt_tokens=len(prefix), neutralized=opening.neutralized)


def tail_ids(permit: Permit, tokens: PromptTokens, text: str) -> Ids:
    """The ids of a pass after the permit's prefix; tokenised now if its text was not known at admission."""
    known = permit.tails.get(text)
    return known if known is not None else _tail(permit.prefix, tokens.messages([text])[0])


def _prefix(opening: Encoded, some_pass: Encoded) -> Ids:
    return opening.ids[: common_start(opening.ids, some_pass.ids)]


def _tail(prefix: Ids, encoded: Encoded) -> Ids:
    assert encoded.ids[: len(prefix)] == prefix, "a pass does not continue its state's prefix"
    return encoded.ids[len(prefix) :]


def _count_neutralized(opening: Encoded, encoded: Sequence[Encoded]) -> int:
    """The state's spellings once, and the own ones of each pass in one order."""
    return opening.neutralized + sum(e.neutralized - opening.neutralized for e in encoded)

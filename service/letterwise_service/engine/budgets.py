"""Admission: what a request will need, checked against the context and the memory before it is queued.

Any thread. A `Permit` is the proof, and carries the ids that were tokenised on the way; nothing is queued or run
without one. Knows tokens and bytes, and nothing of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InvalidRequest, TooLong, Violation
from ..method.decision import bound_passes, count_passes
from ..method.prompt import state_message
from ..method.request import INTERACTIVE, Adapter, DecisionRequest, Json
from .prompts.tokens import Encoded, PromptTokens, common_start
from .reading.packing import FORWARD_TOKENS

Ids: TypeAlias = tuple[int, ...]
# More bytes to a token than real text has, so that a text past it is refused unread: tokenising is work, too.
BYTES_PER_TOKEN = 64
# Every pass continues the state with the same words, so any continuation splits the prompt at the same place.
_ANY_QUESTION = "\n\nQuestion: Is it so?\nOptions:\n"


@dataclass(frozen=True)
class Permit:
    """An admitted decision, or an admitted state alone (`request` None: a prewarm).

    tails: the ids after the prefix of every pass whose text was known beforehand, by that text.
    passes, prompt_tokens: planned; questions that come to be skipped make them fewer.
    adapter: what the model reads with, or None for the model alone. service_class: INTERACTIVE or BATCH.
    longest_tokens: of any of its prompts.
    """

    request: DecisionRequest | None
    prefix: Ids
    tails: Mapping[str, Ids]
    passes: int
    prompt_tokens: int
    neutralized: int
    adapter: Adapter | None = None
    service_class: str = INTERACTIVE
    longest_tokens: int = 2**31


@dataclass(frozen=True)
class Budgets:
    """How long a prompt may be: `context_tokens`, what the model was made for; `memory_tokens`, what fits beside it.

    decision_tokens: how many the prompts of one decision may have together.
    """

    context_tokens: int
    memory_tokens: int
    decision_tokens: int = 2**31

    def check_text(self, text: str) -> None:
        """Raises TooLong for a text that no prompt can hold, without tokenising it."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > BYTES_PER_TOKEN * self.context_tokens:
            raise TooLong(
                f"a prompt would have {size} bytes of text; with {self.context_tokens} tokens of context, "
                f"at most {BYTES_PER_TOKEN * self.context_tokens} are looked at",
                tokens=size // BYTES_PER_TOKEN,
                limit_tokens=self.context_tokens - FORWARD_TOKENS,
            )

    def check_all(self, tokens: int) -> None:
        """Raises TooLong when a decision's prompts, each counted in full, have more tokens than one may have."""
        if tokens > self.decision_tokens:
            raise TooLong(
                f"the decision's prompts have {tokens} tokens together; one decision takes {self.decision_tokens}: "
                "ask fewer questions at once, or average fewer orders",
                tokens=tokens,
                limit_tokens=self.decision_tokens,
            )

    @property
    def longest_tokens(self) -> int:
        """Of one prompt, with room for one forward past it."""
        return min(self.context_tokens, self.memory_tokens) - FORWARD_TOKENS

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


def check_known(adapter: Adapter | None, names: Sequence[str]) -> None:
    """Raises InvalidRequest for an adapter that is none of those loaded, `names`."""
    if adapter is not None and adapter.name not in names:
        known = f"one of the adapters {', '.join(names)}" if names else "none: no adapters are loaded here"
        raise InvalidRequest([Violation("adapter.name", f"expected {known}")])


class Admission:
    """Turns requests into permits. `style`: the prompt style, resolved. adapters: the names of those loaded."""

    def __init__(self, tokens: PromptTokens, budgets: Budgets, style: str, adapters: Sequence[str] = ()) -> None:
        self._tokens = tokens
        self._budgets = budgets
        self._style = style
        self._adapters = tuple(adapters)

    def admit(self, request: DecisionRequest) -> Permit:
        """Tokenises each pass in one order, the state first, and bounds the rest. Raises TooLong, InvalidRequest.

        What is refused is refused before the work that it would have made: a state that does not fit before any pass
        is written, passes too many for one decision before any is tokenised.
        """
        check_known(request.adapter, self._adapters)
        state = state_message(request.state)
        opening = self._opening(state)
        passes = count_passes(request)
        self._budgets.check_all(len(opening.ids) * passes)
        bound = [one.text for one in bound_passes(request, style=self._style)]
        texts = list(dict.fromkeys(bound))
        for text in texts:
            self._budgets.check_text(text)
        encoded = self._tokens.messages(texts)
        self._budgets.check(max(len(e.ids) for e in encoded))
        lengths = dict(zip(texts, (len(e.ids) for e in encoded), strict=True))
        prompt_tokens = sum(lengths[text] for text in bound) * request.samples  # a text asked twice is read twice
        self._budgets.check_all(prompt_tokens)
        prefix = _prefix(opening, encoded[0])
        return Permit(
            request=request,
            prefix=prefix,
            tails={text: _tail(prefix, e) for text, e in zip(texts, encoded, strict=True)},
            passes=passes,
            prompt_tokens=prompt_tokens,
            neutralized=_count_neutralized(opening, encoded),
            adapter=request.adapter,
            service_class=request.service_class,
            longest_tokens=self._budgets.longest_tokens,
        )

    def admit_state(self, state: Json, *, adapter: Adapter | None = None, service_class: str = INTERACTIVE) -> Permit:
        """A permit to read a state's prefix alone. Raises TooLong, InvalidRequest."""
        check_known(adapter, self._adapters)
        message = state_message(state)
        opening = self._opening(message)
        prefix = _prefix(opening, self._tokens.messages([message + _ANY_QUESTION])[0])
        return Permit(
            None,
            prefix,
            {},
            passes=0,
            prompt_tokens=len(prefix),
            neutralized=opening.neutralized,
            adapter=adapter,
            service_class=service_class,
        )

    def _opening(self, message: str) -> Encoded:
        """The prompt up to the state's end, once it is known to fit."""
        self._budgets.check_text(message)
        opening = self._tokens.opening(message)
        self._budgets.check(len(opening.ids))
        return opening


def tail_ids(permit: Permit, tokens: PromptTokens, text: str) -> Ids:
    """The ids of a pass after the permit's prefix; tokenised now if its text was not known at admission.

    Raises TooLong for one that is longer than what was admitted in its place: that is bounded by its bytes, of which
    rare letters have few to a token.
    """
    known = permit.tails.get(text)
    if known is not None:
        return known
    encoded = tokens.messages([text])[0]
    if len(encoded.ids) > permit.longest_tokens:
        told = f"a prompt has {len(encoded.ids)} tokens; {permit.longest_tokens} can be read"
        raise TooLong(told, tokens=len(encoded.ids), limit_tokens=permit.longest_tokens)
    return _tail(permit.prefix, encoded)


def _prefix(opening: Encoded, some_pass: Encoded) -> Ids:
    return opening.ids[: common_start(opening.ids, some_pass.ids)]


def _tail(prefix: Ids, encoded: Encoded) -> Ids:
    assert encoded.ids[: len(prefix)] == prefix, "a pass does not continue its state's prefix"
    return encoded.ids[len(prefix) :]


def _count_neutralized(opening: Encoded, encoded: Sequence[Encoded]) -> int:
    """The state's spellings once, and the own ones of each pass in one order."""
    return opening.neutralized + sum(e.neutralized - opening.neutralized for e in encoded)

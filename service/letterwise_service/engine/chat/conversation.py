"""Conversations as token ids, and their admission: what a chat will need, checked before it waits for a place.

Any thread: holds a tokenizer, guarded by the lock of all who use it, and no MLX array. A `ChatPermit` is the proof of
admission and carries the ids. Knows nothing of how text is generated.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest, TooLong, Violation
from ...method.chat import ChatMessage, ChatRequest, check
from ...method.request import Adapter
from ..budgets import Budgets, Ids
from ..prompts import template
from ..prompts.plain import PlainEncoder
from ..prompts.template import PROBE
from ..prompts.tokens import Encoded

# Stands for a content while the template's own text is looked for.
_MARK = re.compile(r"content-(\d+)-of-this-turn")


@dataclass(frozen=True)
class ChatPermit:
    """An admitted chat: its prompt, and the tokens that it may come to have."""

    request: ChatRequest
    ids: Ids
    neutralized: int = 0

    @property
    def tokens(self) -> int:
        return len(self.ids) + self.request.max_tokens


class ConversationTokens:
    """Turns conversations into the ids of prompts that end where the reply begins.

    Raises ModelUnsuitable when the chat template cannot even carry one user message.
    """

    def __init__(self, tokenizer: Any, lock: threading.Lock) -> None:
        """`tokenizer`: mlx-lm's TokenizerWrapper. `lock`: of all who use it."""
        self._tokenizer = tokenizer
        self._lock = lock
        self._encode_texts = template.batch_encoder(tokenizer, lock)
        self._bos = template.added_bos(tokenizer)
        self._control = template.control_tokens(tokenizer)
        self._pattern = template.any_of(self._control)
        self._control_ids = frozenset(self._control.values())
        header, _, footer = template.render_message(tokenizer, PROBE).partition(PROBE)
        self._plain = PlainEncoder.build(tokenizer, self._control, self._encode_texts, (header, footer), PROBE)

    def encode(self, messages: Sequence[ChatMessage]) -> Encoded:
        """The whole prompt. Control tokens that contents spell are read as plain text, and counted.

        Raises InvalidRequest when the template refuses these turns.
        """
        text = self._rendered(messages, [message.content for message in messages])
        parts = self._parts(messages)
        ids = self._encode_texts([text])[0]
        spelled = sum(len(self._pattern.findall(message.content)) for message in messages) if self._pattern else 0
        unforeseen = self._control_in(ids) - self._control_in(self._encode_texts(["x".join(parts)])[0])
        if spelled or unforeseen > 0:
            ids = self._neutral(messages, parts, text)
        return Encoded(template.with_one_bos(self._bos, ids), spelled or max(0, unforeseen))

    def _rendered(self, messages: Sequence[ChatMessage], contents: Sequence[str]) -> str:
        turns = [(message.role, content) for message, content in zip(messages, contents, strict=True)]
        try:
            with self._lock:
                return template.render(self._tokenizer, turns)
        except Exception as error:  # a template is a program of somebody else's: anything may come out of it
            refusal = f"expected turns that the model's chat template takes; it says: {error}"
            raise InvalidRequest([Violation("messages", refusal)]) from error

    def _parts(self, messages: Sequence[ChatMessage]) -> list[str]:
        """What the template puts before, between and after the contents of such turns; one part if it moves them."""
        marks = [f"content-{index}-of-this-turn" for index in range(len(messages))]
        whole = self._rendered(messages, marks)
        cut = _MARK.split(whole)  # part, index, part, index, …, part
        return cut[::2] if cut[1::2] == [str(index) for index in range(len(messages))] else [whole]

    def _neutral(self, messages: Sequence[ChatMessage], parts: Sequence[str], text: str) -> list[int]:
        """The prompt with the contents as nothing but text; with their spellings broken where that cannot be had."""
        raw = [message.content for message in messages]
        for contents in (raw, [content.strip() for content in raw]):  # many templates trim
            if self._plain is not None and _joined(parts, contents) == text:
                ids = self._plain.encode(parts, contents)
                if ids is not None:
                    return ids
        broken = [template.broken(self._pattern, content) for content in raw]
        return self._encode_texts([self._rendered(messages, broken)])[0]

    def _control_in(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))


class ChatAdmission:
    """Turns chat requests into permits. `budgets`: its `memory_tokens` are those of all chats that generate at once."""

    def __init__(
        self,
        tokens: ConversationTokens,
        budgets: Budgets,
        max_tokens: int,
        check_adapter: Callable[[Adapter | None], None],
    ) -> None:
        self._tokens = tokens
        self._budgets = budgets
        self._max_tokens = max_tokens
        self._check_adapter = check_adapter

    def admit(self, request: ChatRequest) -> ChatPermit:
        """Any thread; tokenises. Raises InvalidRequest and TooLong."""
        check(request, max_tokens=self._max_tokens)
        self._check_adapter(request.adapter)
        self._budgets.check_text("".join(message.content for message in request.messages))
        encoded = self._tokens.encode(request.messages)
        permit = ChatPermit(request, encoded.ids, encoded.neutralized)
        self._check_fits(permit)
        return permit

    def _check_fits(self, permit: ChatPermit) -> None:
        for limit, what in (
            (self._budgets.context_tokens, "the model's context"),
            (self._budgets.memory_tokens, "the memory left for chats"),
        ):
            if permit.tokens > limit:
                raise TooLong(
                    f"the conversation has {len(permit.ids)} tokens and may get {permit.request.max_tokens} more; "
                    f"{what} takes {limit} together",
                    tokens=permit.tokens,
                    limit_tokens=limit,
                )


def _joined(parts: Sequence[str], contents: Sequence[str]) -> str | None:
    """Part, content, part, …, part as one text; None when they are not so many."""
    if len(parts) != len(contents) + 1:
        return None
    return "".join(part + content for part, content in zip(parts, [*contents, ""], strict=True))

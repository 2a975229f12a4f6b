"""Prompts as token ids: the chat envelope, the prefix split, the letters, and control tokens kept out of users' hands.

Any thread: it holds a tokenizer and no MLX array. It knows nothing of the model's weights, nor of what the questions
mean.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ModelUnsuitable
from ...method.prompt import LETTERS
from . import template
from .plain import PlainEncoder
from .recent import Recent
from .template import PROBE

# Reasoning blocks by their spelling, for templates whose tokenizer does not name its own.
_REASONING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<|channel>thought", "<channel|>"))
# The tokenizer's own form of a text takes many times what its ids do.
_TEXTS_AT_ONCE = 16
# Of the texts whose ids are remembered; these take about ten times as many bytes.
_REMEMBERED_CHARACTERS = 2_000_000


@dataclass(frozen=True)
class Encoded:
    """`ids` of one prompt; `neutralized`: how many control spellings of the user's were read as plain text."""

    ids: tuple[int, ...]
    neutralized: int = 0


@dataclass(frozen=True)
class Envelope:
    """What the template puts before and after a user message, generation prompt included."""

    header: str
    footer: str


class PromptTokens:
    """Turns user messages into the ids of whole chat prompts.

    Raises ModelUnsuitable when the model's template or tokenizer cannot serve letter reads, with the reason.
    """

    def __init__(self, tokenizer: Any, lock: threading.Lock | None = None) -> None:
        """`tokenizer`: mlx-lm's TokenizerWrapper. `lock`: of all who use it."""
        self._tokenizer = tokenizer
        self._recent: Recent[Encoded] = Recent(_REMEMBERED_CHARACTERS)
        self._encode_texts = template.batch_encoder(tokenizer, lock or threading.Lock())
        self._bos = template.added_bos(tokenizer)
        self._envelope = self._find_envelope()
        _refuse_open_reasoning(tokenizer, self._envelope.footer)
        self._control = template.control_tokens(tokenizer)
        self._control_pattern = template.any_of(self._control)
        self._control_ids = frozenset(self._control.values())
        self._structure = {footer: self._count_control(footer) for footer in ("", self._envelope.footer)}
        around = (self._envelope.header, self._envelope.footer)
        self._plain = PlainEncoder.build(tokenizer, self._control, self._encode_texts, around, PROBE)
        self.letter_ids = self._find_letters()

    def messages(self, messages: Sequence[str]) -> list[Encoded]:
        """The whole prompt of each user message: header, message, footer."""
        return self._encode_all([(message, self._envelope.footer) for message in messages])

    def opening(self, message: str) -> Encoded:
        """The prompt that ends at the end of `message`: no footer. The state's half of the prefix split."""
        return self._encode_all([(message, "")])[0]

    def _encode_all(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        found = {pair: known for pair in pairs if (known := self._recent.get(*pair)) is not None}
        new = [pair for pair in dict.fromkeys(pairs) if pair not in found]
        for start in range(0, len(new), _TEXTS_AT_ONCE):
            some = new[start : start + _TEXTS_AT_ONCE]
            found |= zip(some, self._encode_some(some), strict=True)
        for pair in new:
            self._recent.put(*pair, found[pair])
        return [found[pair] for pair in pairs]

    def _encode_some(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        ids = self._encode_texts([self._envelope.header + message + footer for message, footer in pairs])
        return [self._safely(message, footer, plain) for (message, footer), plain in zip(pairs, ids, strict=True)]

    def _safely(self, message: str, footer: str, ids: Sequence[int]) -> Encoded:
        """`ids`, unless the message spells control tokens: then the ids that it has as plain text.

        A tokenizer's normalizer may make a spelling of what was none, so the ids are looked at too.
        """
        spelled = len(self._control_pattern.findall(message)) if self._control_pattern else 0
        if spelled or self._control_in(ids) > self._structure.get(footer, len(ids)):
            spelled = spelled or self._control_in(ids) - self._structure[footer]
            ids = self._neutral(message, footer)
        return Encoded(template.with_one_bos(self._bos, ids), spelled)

    def _control_in(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))

    def _count_control(self, footer: str) -> int:
        """How many control tokens the template itself puts around a message."""
        return self._control_in(self._encode_texts([self._envelope.header + PROBE + footer])[0])

    def _neutral(self, message: str, footer: str) -> Sequence[int]:
        if self._plain is not None:
            ids = self._plain.encode((self._envelope.header, footer), (message,))
            if ids is not None:
                return ids
        message = template.broken(self._control_pattern, message)
        return self._encode_texts([self._envelope.header + message + footer])[0]

    def _find_envelope(self) -> Envelope:
        rendered = template.render_message(self._tokenizer, PROBE)
        header, found, footer = rendered.partition(PROBE)
        if not found:
            raise ModelUnsuitable("the chat template does not carry a user message through unchanged")
        other = PROBE.replace("parcel", "letter {{ x }} é\u3000")
        if template.render_message(self._tokenizer, other) != header + other + footer:
            raise ModelUnsuitable("the chat template puts different text around different user messages")
        return Envelope(header, footer)

    def _find_letters(self) -> tuple[int, ...]:
        """The id of each letter at the answer position; 52 different ids, each the only one that its letter adds."""
        footer = self._envelope.footer
        base = self._encode_all([(PROBE, footer)])[0].ids
        found: list[int] = []
        for letter, encoded in zip(
            LETTERS, self._encode_all([(PROBE, footer + letter) for letter in LETTERS]), strict=True
        ):
            ids = encoded.ids
            if len(ids) != len(base) + 1 or ids[:-1] != base or ids[-1] in found:
                raise ModelUnsuitable(f"the letter {letter} is not one token of its own at the answer position")
            found.append(ids[-1])
        return tuple(found)


def common_start(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids the two lists share from the start: where a prompt splits into prefix and tail."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def _refuse_open_reasoning(tokenizer: Any, footer: str) -> None:
    own = (str(getattr(tokenizer, "think_start", None) or ""), str(getattr(tokenizer, "think_end", None) or ""))
    for opening, closing in (*_REASONING, *([own] if all(own) else [])):
        if footer.rfind(opening) > footer.rfind(closing):
            raise ModelUnsuitable(
                f"the chat template opens a reasoning block ({opening}) with thinking off, so the reply's first token "
                "is not the answer"
            )

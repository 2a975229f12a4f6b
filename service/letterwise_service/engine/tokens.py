"""Prompts as token ids: the chat envelope, the prefix split, the letters, and control tokens kept out of users' hands.

Any thread: it holds a tokenizer and no MLX array, and guards the tokenizer with a lock. It knows nothing of the
model's weights, nor of what the questions mean.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelUnsuitable
from ..method.prompt import LETTERS
from .plain import PlainEncoder

# A message that no template has a reason to treat specially; rendered to find what a template puts around one.
_PROBE = (
    "State:\nA parcel arrived late.\n\nQuestion: Is it late?\nOptions:\nA) yes\nB) no\n\nAnswer with the letter only."
)
# Reasoning blocks by their spelling, for templates whose tokenizer does not name its own.
_REASONING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<|channel>thought", "<channel|>"))
# Texts that one caller tokenises before it lets another.
_TEXTS_A_TURN = 16
_WORD_JOINER = "\u2060"


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

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: mlx-lm's TokenizerWrapper."""
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._encode_texts = _batch_encoder(tokenizer)
        self._bos = _added_bos(tokenizer)
        self._envelope = self._find_envelope()
        _refuse_open_reasoning(tokenizer, self._envelope.footer)
        self._control = _control_tokens(tokenizer)
        self._control_pattern = _any_of(self._control)
        self._control_ids = frozenset(self._control.values())
        self._structure = {footer: self._count_control(footer) for footer in ("", self._envelope.footer)}
        self._plain = PlainEncoder.build(
            tokenizer, self._control, self._encode_texts, (self._envelope.header, self._envelope.footer), _PROBE
        )
        self.letter_ids = self._find_letters()

    def messages(self, messages: Sequence[str]) -> list[Encoded]:
        """The whole prompt of each user message: header, message, footer."""
        return self._encode_all([(message, self._envelope.footer) for message in messages])

    def opening(self, message: str) -> Encoded:
        """The prompt that ends at the end of `message`: no footer. The state's half of the prefix split."""
        return self._encode_all([(message, "")])[0]

    def _encode_all(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        found: list[Encoded] = []
        for start in range(0, len(pairs), _TEXTS_A_TURN):  # other callers have their turn between
            with self._lock:
                found += self._encode_some(pairs[start : start + _TEXTS_A_TURN])
        return found

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
        return Encoded(self._with_one_bos(ids), spelled)

    def _control_in(self, ids: Sequence[int]) -> int:
        return sum(map(self._control_ids.__contains__, ids))

    def _count_control(self, footer: str) -> int:
        """How many control tokens the template itself puts around a message."""
        return self._control_in(self._encode_texts([self._envelope.header + _PROBE + footer])[0])

    def _neutral(self, message: str, footer: str) -> Sequence[int]:
        if self._plain is not None:
            ids = self._plain.encode(message, footer)
            if ids is not None:
                return ids
        return self._broken(message, footer)

    def _broken(self, message: str, footer: str) -> Sequence[int]:
        """Break each spelling with a word joiner: for tokenizers of which no plain form can be made."""
        assert self._control_pattern is not None
        while self._control_pattern.search(message):  # again, where a spelling holds another
            message = self._control_pattern.sub(lambda m: m.group()[0] + _WORD_JOINER + m.group()[1:], message)
        return self._encode_texts([self._envelope.header + message + footer])[0]

    def _with_one_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self._bos is None:
            return tuple(ids)
        start = 0
        while start < len(ids) and ids[start] == self._bos:
            start += 1
        return (self._bos, *ids[start:])

    def _find_envelope(self) -> Envelope:
        rendered = _render(self._tokenizer, _PROBE)
        header, found, footer = rendered.partition(_PROBE)
        if not found:
            raise ModelUnsuitable("the chat template does not carry a user message through unchanged")
        other = _PROBE.replace("parcel", "letter {{ x }} é\u3000")
        if _render(self._tokenizer, other) != header + other + footer:
            raise ModelUnsuitable("the chat template puts different text around different user messages")
        return Envelope(header, footer)

    def _find_letters(self) -> tuple[int, ...]:
        """The id of each letter at the answer position; 52 different ids, each the only one that its letter adds."""
        footer = self._envelope.footer
        base = self._encode_all([(_PROBE, footer)])[0].ids
        found: list[int] = []
        for letter, encoded in zip(
            LETTERS, self._encode_all([(_PROBE, footer + letter) for letter in LETTERS]), strict=True
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


def _render(tokenizer: Any, message: str) -> str:
    if not getattr(tokenizer, "has_chat_template", False):
        raise ModelUnsuitable("the model has no chat template, and a decision is asked through one")
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except Exception as error:  # a template is a program of somebody else's: anything may come out of it
        raise ModelUnsuitable(f"the chat template fails on a single user message: {error}") from error
    return str(text)


def _refuse_open_reasoning(tokenizer: Any, footer: str) -> None:
    own = (str(getattr(tokenizer, "think_start", None) or ""), str(getattr(tokenizer, "think_end", None) or ""))
    for opening, closing in (*_REASONING, *([own] if all(own) else [])):
        if footer.rfind(opening) > footer.rfind(closing):
            raise ModelUnsuitable(
                f"the chat template opens a reasoning block ({opening}) with thinking off, so the reply's first token "
                "is not the answer"
            )


def _batch_encoder(tokenizer: Any) -> Callable[[Sequence[str]], list[list[int]]]:
    """Encode without special tokens added; many at once where the Rust tokenizer gives what the wrapper gives."""

    def one_by_one(texts: Sequence[str]) -> list[list[int]]:
        return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]

    rust = getattr(getattr(tokenizer, "_tokenizer", tokenizer), "backend_tokenizer", None)
    if rust is None:
        return one_by_one

    def together(texts: Sequence[str]) -> list[list[int]]:
        return [list(e.ids) for e in rust.encode_batch(list(texts), add_special_tokens=False)]

    return together if together([_PROBE]) == one_by_one([_PROBE]) else one_by_one


def _added_bos(tokenizer: Any) -> int | None:
    """The BOS id when the tokenizer puts one before a text by itself, or the template does; else None."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        return None
    by_itself = list(tokenizer.encode("a"))[:1] == [bos]
    rendered = _render(tokenizer, _PROBE)
    by_template = list(tokenizer.encode(rendered, add_special_tokens=False))[:1] == [bos]
    return int(bos) if by_itself or by_template else None


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """Spellings that are structure rather than text: special tokens, and added tokens that the template writes."""
    template = str(getattr(tokenizer, "chat_template", "") or "")
    named = {
        getattr(tokenizer, name, None) for name in ("think_start", "think_end", "tool_call_start", "tool_call_end")
    }
    added = dict(getattr(tokenizer, "added_tokens_decoder", None) or {})
    control: dict[str, int] = {}
    for token_id, token in added.items():
        spelling = str(getattr(token, "content", token))
        structural = getattr(token, "special", True) or spelling in named or spelling in template
        if structural and len(spelling.strip()) > 1:
            control[spelling] = int(token_id)
    return control


def _any_of(control: dict[str, int]) -> re.Pattern[str] | None:
    if not control:
        return None
    longest_first = sorted(control, key=len, reverse=True)
    return re.compile("|".join(re.escape(spelling) for spelling in longest_first))

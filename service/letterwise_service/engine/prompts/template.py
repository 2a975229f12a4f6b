"""A tokenizer and its chat template, as prompts need them: rendering, encoding, the one BOS, the control tokens.

Any thread, rendering under the lock of whoever holds the tokenizer. Knows nothing of what is asked or said.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ModelUnsuitable

# A message that no template has a reason to treat specially; rendered to find what a template puts around one.
PROBE = (
    "State:\nA parcel arrived late.\n\nQuestion: Is it late?\nOptions:\nA) yes\nB) no\n\nAnswer with the letter only."
)
# Breaks a spelling in text, and is not seen.
_WORD_JOINER = "\u2060"


def render(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    """The prompt text of (role, content) turns, thinking off, up to where the reply begins. Raises what it raises."""
    return str(
        tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
    )


def render_message(tokenizer: Any, message: str) -> str:
    """The prompt text of one user message. Raises ModelUnsuitable."""
    if not getattr(tokenizer, "has_chat_template", False):
        raise ModelUnsuitable("the model has no chat template, and a decision is asked through one")
    try:
        return render(tokenizer, [("user", message)])
    except Exception as error:  # a template is a program of somebody else's: anything may come out of it
        raise ModelUnsuitable(f"the chat template fails on a single user message: {error}") from error


def batch_encoder(tokenizer: Any, lock: threading.Lock) -> Callable[[Sequence[str]], list[list[int]]]:
    """Encode without special tokens added; many at once where the Rust tokenizer gives what the wrapper gives.

    `lock`: of all who use the wrapper, which sets its own truncation before it encodes. The Rust tokenizer only reads
    itself, so a long text holds back nobody else's.
    """

    def one(text: str) -> list[int]:
        with lock:
            return list(tokenizer.encode(text, add_special_tokens=False))

    def one_by_one(texts: Sequence[str]) -> list[list[int]]:
        return [one(text) for text in texts]

    rust = getattr(getattr(tokenizer, "_tokenizer", tokenizer), "backend_tokenizer", None)
    if rust is None:
        return one_by_one

    def together(texts: Sequence[str]) -> list[list[int]]:
        return [list(e.ids) for e in rust.encode_batch(list(texts), add_special_tokens=False)]

    return together if together([PROBE]) == one_by_one([PROBE]) else one_by_one


def added_bos(tokenizer: Any) -> int | None:
    """The BOS id when the tokenizer puts one before a text by itself, or the template does; else None."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        return None
    by_itself = list(tokenizer.encode("a"))[:1] == [bos]
    rendered = render_message(tokenizer, PROBE)
    by_template = list(tokenizer.encode(rendered, add_special_tokens=False))[:1] == [bos]
    return int(bos) if by_itself or by_template else None


def with_one_bos(bos: int | None, ids: Sequence[int]) -> tuple[int, ...]:
    """`ids` with exactly one BOS before the rest, where there is one to be."""
    if bos is None:
        return tuple(ids)
    start = 0
    while start < len(ids) and ids[start] == bos:
        start += 1
    return (bos, *ids[start:])


def control_tokens(tokenizer: Any) -> dict[str, int]:
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


def any_of(control: dict[str, int]) -> re.Pattern[str] | None:
    """A pattern that finds every control spelling, the longest first; None where there is none."""
    if not control:
        return None
    longest_first = sorted(control, key=len, reverse=True)
    return re.compile("|".join(re.escape(spelling) for spelling in longest_first))


def broken(pattern: re.Pattern[str] | None, text: str) -> str:
    """`text` with a word joiner in each spelling: for tokenizers of which no plain form can be made."""
    while pattern is not None and pattern.search(text):  # again, where a spelling holds another
        text = pattern.sub(lambda found: found.group()[0] + _WORD_JOINER + found.group()[1:], text)
    return text

"""A second form of a tokenizer in which control tokens do not exist: users' text that spells one stays text.

Any thread, under the lock of `tokens.py`. Works for tokenizers of the Rust `tokenizers` library; for others
`build` gives None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Encode = Callable[[Sequence[str]], list[list[int]]]


class PlainEncoder:
    """Encodes header and footer as the template meant them, and what lies between as nothing but text."""

    def __init__(self, rust: Any, control: Mapping[str, int], encode: Encode, header: str) -> None:
        self._rust = rust
        self._control = dict(control)
        self._ids = frozenset(control.values())
        self._encode = encode
        self._header, self._before = _cut_last(header, self._control)
        self._header_ids = encode([self._header])[0] if self._header else []

    @classmethod
    def build(
        cls, tokenizer: Any, control: Mapping[str, int], encode: Encode, around: tuple[str, str], probe: str
    ) -> PlainEncoder | None:
        """The plain form, or None when it would not give `probe` the ids that the tokenizer gives it.

        around: what the template puts before and after a message.
        """
        header, footer = around
        rust = getattr(getattr(tokenizer, "_tokenizer", tokenizer), "backend_tokenizer", None)
        if rust is None or not control:
            return None
        plain = cls(_without(rust, control), control, encode, header)
        expected = encode([header + probe + footer])[0]
        return plain if plain.encode(probe, footer) == expected else None

    def encode(self, message: str, footer: str) -> list[int] | None:
        """Ids of header, message and footer; None when a control id came out of the text all the same."""
        after, rest = _cut_first(footer, self._control)
        text = self._before + message + after
        inner = list(self._rust.encode(text, add_special_tokens=False).ids)
        if self._ids.intersection(inner):
            return None
        closing = self._encode([rest])[0] if rest else []
        return [*self._header_ids, *inner, *closing]


def _without(rust: Any, control: Mapping[str, int]) -> Any:
    from tokenizers import Tokenizer

    document = json.loads(rust.to_str())
    document["added_tokens"] = [t for t in document.get("added_tokens", []) if t["content"] not in control]
    document["post_processor"] = None
    return Tokenizer.from_str(json.dumps(document))


def _cut_last(text: str, control: Mapping[str, int]) -> tuple[str, str]:
    """`text` in two, after the last control spelling in it."""
    end = max((text.rfind(s) + len(s) for s in control if s in text), default=0)
    return text[:end], text[end:]


def _cut_first(text: str, control: Mapping[str, int]) -> tuple[str, str]:
    """`text` in two, before the first control spelling in it."""
    start = min((text.find(s) for s in control if s in text), default=len(text))
    return text[:start], text[start:]

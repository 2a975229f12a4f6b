"""A second form of a tokenizer in which control tokens do not exist: users' text that spells one stays text.

Any thread. Works for tokenizers of the Rust `tokenizers` library; for
others `build` gives None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

Encode = Callable[[Sequence[str]], list[list[int]]]


class PlainEncoder:
    """Encodes a template's parts as the template meant them, and what lies between as nothing but text."""

    def __init__(self, rust: Any, control: Mapping[str, int], encode: Encode) -> None:
        self._rust = rust
        self._control = tuple(control)
        self._ids = frozenset(control.values())
        self._encode = encode

    @classmethod
    def build(
        cls, tokenizer: Any, control: Mapping[str, int], encode: Encode, around: tuple[str, str], probe: str
    ) -> PlainEncoder | None:
        """The plain form, or None when it would not give `probe` the ids that the tokenizer gives it.

        around: what the template puts before and after a message.
        """
        rust = getattr(getattr(tokenizer, "_tokenizer", tokenizer), "backend_tokenizer", None)
        if rust is None or not control:
            return None
        plain = cls(_without(rust, control), control, encode)
        expected = encode([probe.join(around)])[0]
        return plain if plain.encode(around, (probe,)) == expected else None

    def encode(self, parts: Sequence[str], contents: Sequence[str]) -> list[int] | None:
        """Ids of part, content, part, …, part; None when a control id came out of a content all the same."""
        ids: list[int] = []
        for text, structural in self._runs(parts, contents):
            if structural:
                ids += self._encode([text])[0]
                continue
            inner = self._rust.encode(text, add_special_tokens=False).ids
            if self._ids.intersection(inner):
                return None
            ids += inner
        return ids

    def _runs(self, parts: Sequence[str], contents: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """The whole in runs, each with whether it is the template's own, from one control spelling of it to another."""
        text = ""
        for index, (part, content) in enumerate(zip_longest(parts, contents, fillvalue="")):
            start, end = self._structure(part, first=index == 0, last=index == len(parts) - 1)
            if start < end:
                if text + part[:start]:
                    yield text + part[:start], False
                yield part[start:end], True
                text = part[end:] + content
            else:
                text += part + content
        if text:
            yield text, False

    def _structure(self, part: str, *, first: bool, last: bool) -> tuple[int, int]:
        """From where to where a part holds control spellings; to its outer end where nothing of a user's is there."""
        found = [spelling for spelling in self._control if spelling in part]
        if not found:
            return 0, 0
        start = 0 if first else min(part.find(spelling) for spelling in found)
        end = len(part) if last else max(part.rfind(spelling) + len(spelling) for spelling in found)
        return start, end


def _without(rust: Any, control: Mapping[str, int]) -> Any:
    from tokenizers import Tokenizer

    document = json.loads(rust.to_str())
    document["added_tokens"] = [t for t in document.get("added_tokens", []) if t["content"] not in control]
    document["post_processor"] = None
    return Tokenizer.from_str(json.dumps(document))

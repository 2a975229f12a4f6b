"""The forms of a setting's value: from its text to the value, or a ValueError that says what was expected.

Pure, but for a look at whether a path is there. Knows no setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Parser: TypeAlias = Callable[[str], T]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_MOST = 2**31 - 1  # what every counter of the contract can hold
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def whole(low: int, high: int = _MOST) -> Parser[int]:
    def parse(text: str) -> int:
        expected = f"a whole number from {low} to {high}" if high < _MOST else f"a whole number, {low} or more"
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(expected)
        return int(text)

    return parse


def seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise ValueError("a number of seconds, such as 30 or 0.5")
    if float(text) > _MOST // 1000:  # gRPC counts in milliseconds
        raise ValueError(f"a number of seconds up to {_MOST // 1000}")
    return float(text)


def positive_seconds(text: str) -> float:
    if (found := seconds(text)) <= 0:
        raise ValueError("a number of seconds above 0")
    return found


def size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or int(found := float(match[1]) * _unit(match[2], match[3])) < 1:
        raise ValueError("a size above 0, such as 512MB, 2GiB or a number of bytes")
    if found >= 2**63:
        raise ValueError("a size that a machine can have")
    return int(found)


def message_size(text: str) -> int:
    if not 1024 <= (found := size(text)) <= _MOST:
        raise ValueError("a size from 1KiB to 2147483647 bytes")
    return found


def _unit(letter: str, binary: str) -> int:
    return int((1024 if binary else 1000) ** " kmgt".index(letter.lower() or " "))


def one_of(*words: str) -> Parser[str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def on_off(text: str) -> bool:
    return one_of("on", "off")(text) == "on"


def text(text: str) -> str:
    if not text.strip() or not text.isprintable():  # bytes that are no UTF-8 come as lone surrogates
        raise ValueError("some printable text")
    return text


def model(text: str) -> str:
    """`demo`, a path that exists, or a hub id (`owner/name`); a path to nowhere is refused here, before any work."""
    path = Path(text).expanduser()
    if text == "demo":
        return text
    if path.is_dir() or (path.is_file() and path.suffix.lower() == ".gguf"):
        return str(path)
    if path.is_file():
        raise ValueError("demo, a model folder, a .gguf file or a hub id; this is a file of another kind")
    if not _HUB_ID.fullmatch(text) or text.startswith(".") or path.suffix.lower() == ".gguf":
        raise ValueError("demo, a model folder, a .gguf file or a hub id (owner/name); there is no such path")
    return text


def optional(parse: Parser[T]) -> Parser[T | None]:
    return parse


def file(text: str) -> str:
    """A file that is there; what it holds is judged by whoever reads it."""
    if not (path := Path(text).expanduser()).is_file():
        raise ValueError("the path of a file that is there")
    return str(path)


def adapters(text: str) -> tuple[tuple[str, str], ...]:
    """`name=folder,…` → the pairs. Each folder must be there, each name once."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, folder = part.strip().partition("=")
        path = Path(folder).expanduser()
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or name in found or not folder or not path.is_dir():
            raise ValueError("name=folder pairs with commas between, each name once and each folder there")
        found[name] = str(path)
    return tuple(found.items())

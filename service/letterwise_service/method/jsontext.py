"""Strict JSON: text to values, and what is wrong with a value that no text should have held.

Owns the rules that Python's reader leaves open: repeated keys, NaN and infinity, lone surrogates, nesting and
the length of integers. Reading keeps what breaks a rule, and `value_problem` finds it, so that the caller can
say which field it is in. Pure functions on any thread; knows nothing of requests.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from ..errors import MalformedBody
from .request import Json

MAX_DEPTH = 100
MAX_DIGITS = 4300  # Python's own bound on reading and printing an integer
# Text that nests deeper is not read at all. Python's reader recurses, up to its limit of a thousand; near to that the
# garbage collector may run, and the finalizers that it calls, of objects that have nothing to do with the text, fail.
_DEEPEST_READ = 4 * MAX_DEPTH

_SURROGATE = re.compile("[\ud800-\udfff]")
# A string, the text's rest where it is not closed; possessive, so that no text makes it start over.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_AT_ONCE = 65_536
_STEPS = [(byte in b"[{") - (byte in b"]}") for byte in range(128)]
_FIRST_TOO_LONG = 10**MAX_DIGITS
_INTEGERS = f"integers of at most {MAX_DIGITS} digits"


class RepeatedKeys(dict[str, Json]):
    """An object whose text gave some keys, `repeated`, more than once."""

    def __init__(self, pairs: list[tuple[str, Json]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs)
        self.repeated = tuple(key for key, count in counts.items() if count > 1)


@dataclass(frozen=True)
class LongInteger:
    """Stands where the text had an integer that is too long to read."""

    digits: int


def parse(text: str | bytes) -> Json:
    """The value of a JSON text; bytes are UTF-8. `value_problem` is still to be asked about its parts.

    Raises MalformedBody, which says where the text stops being JSON and quotes nothing.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        _check_depth(decoded)
        return json.loads(decoded, object_pairs_hook=_object, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"expected UTF-8 text; byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"expected JSON: {error.msg} at line {error.lineno} column {error.colno}") from None


def _check_depth(text: str) -> None:
    """Raises MalformedBody for text that nests too deep to be read; exact as far as the text is JSON."""
    if text.count("[") + text.count("{") > _DEEPEST_READ:
        brackets = _NO_BRACKETS.sub("", _STRING.sub("", text)).encode("ascii")
        depth = 0
        for start in range(0, len(brackets), _AT_ONCE):  # others have their turn between
            steps = map(_STEPS.__getitem__, brackets[start : start + _AT_ONCE])
            depths = list(accumulate(steps, initial=depth))
            if max(depths) > _DEEPEST_READ:
                raise MalformedBody(f"expected JSON nested at most {MAX_DEPTH} deep")
            depth = depths[-1]


def value_problem(value: Json) -> str | None:
    """What was expected of a JSON value that breaks a rule, or None; never quotes the value."""
    for part, depth in _parts(value):
        if depth > MAX_DEPTH:
            return f"expected nesting at most {MAX_DEPTH} deep"
        if problem := _part_problem(part):
            return problem
    return None


def has_surrogate(text: str) -> bool:
    """Whether the text holds half of a UTF-16 pair, which no encoding can carry."""
    return _SURROGATE.search(text) is not None


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else RepeatedKeys(pairs)


def _integer(digits: str) -> int | LongInteger:
    return int(digits) if len(digits) <= MAX_DIGITS else LongInteger(len(digits))


def _parts(value: Json) -> Iterator[tuple[Json, int]]:
    """Every value in `value` and every key, with its depth; an object or list is one deeper than what holds it."""
    waiting: list[tuple[Json, int]] = [(value, 0)]
    while waiting:
        part, outside = waiting.pop()
        depth = outside + isinstance(part, dict | list)
        yield part, depth
        if depth <= MAX_DEPTH and isinstance(part, dict):
            waiting.extend((inner, depth) for pair in part.items() for inner in pair)
        elif depth <= MAX_DEPTH and isinstance(part, list):
            waiting.extend((inner, depth) for inner in part)


def _part_problem(part: Json) -> str | None:
    match part:
        case str():
            return "expected text without lone surrogates" if has_surrogate(part) else None
        case RepeatedKeys():
            return "expected an object whose keys differ"
        case bool() | dict() | list() | None:
            return None
        case float():
            return None if math.isfinite(part) else "expected finite numbers, without NaN or Infinity"
        case int():
            return None if abs(part) < _FIRST_TOO_LONG else f"expected {_INTEGERS}"
        case LongInteger():
            return f"expected {_INTEGERS}"
    return "expected a JSON value"

"""Single fields of the messages that the client sends, from a caller's values.

Pure: text stays text, anything else becomes JSON text with its keys in their order. A value that cannot be sent raises
InvalidRequest with the field's path; every other rule is the server's.
"""

from __future__ import annotations

import json

from .errors import InvalidRequest, Violation
from .questions import Json
from .v1 import decision_pb2 as pb


def value(given: Json, path: str) -> pb.Value:
    """Text, or a value as JSON text."""
    if isinstance(given, str):
        return pb.Value(text=text(given, path))
    try:
        encoded = json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise invalid(path, "expected text or a value that JSON can hold") from None
    return pb.Value(json=text(encoded, path))


def text(given: object, path: str, expected: str = "expected text") -> str:
    """The text itself, when the wire can carry it."""
    if not isinstance(given, str):
        raise invalid(path, expected)
    try:
        given.encode()
    except UnicodeEncodeError:
        raise invalid(path, "expected text without half of a surrogate pair") from None
    return given


def number(given: object, path: str) -> float:
    """A number as a double."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise invalid(path, "expected a number")
    try:
        return float(given)
    except OverflowError:
        raise invalid(path, "expected a number that a double can hold") from None


def whole(given: object, path: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`, as far as the field can hold it."""
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise invalid(path, f"expected a whole number from {low} to {high}")
    return given


def count(given: object, path: str) -> int:
    """A whole number above 0, as far as a field of 32 bits can hold it; how much is too much, the server says."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise invalid(path, "expected a whole number above 0")
    if given >= 2**32:
        raise invalid(path, "expected a smaller number, one that 32 bits can hold")
    return given


def model(given: str | None) -> str:
    """The model wanted; empty for none named."""
    return "" if given is None else text(given, "model", "expected the name of a model, as text")


def invalid(path: str, expected: str) -> InvalidRequest:
    """The refusal of one field."""
    return InvalidRequest.of([Violation(path, expected)])

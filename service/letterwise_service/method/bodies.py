"""Reading a JSON body field by field: what is wrong with it, what of it is not used, and the fields that all have.

Owns the collecting of violations, so that a caller hears of them together. Pure, one reader per body, on any thread.
Which fields a body has is its own shape's to say (`jev.py`, `openai.py`); how JSON text is read is `jsontext.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from ..errors import InvalidRequest, MalformedBody, Violation
from . import jsontext
from .paths import shown
from .request import BATCH, INTERACTIVE, Adapter, Json
from .validation import MAX_ADAPTER_SCALE, MAX_VIOLATIONS, Limits

_ADAPTER_FIELDS = ("name", "scale")
# An answer echoes the names of what it did not use: not more of them than a reader would read.
_MAX_IGNORED = 64
# How like a field's name a key must be to be taken for it, misspelt; a longer key than this is none.
_LIKE = 0.75
_LONGEST_KEY = 40


def parse_object(text: str | bytes) -> Mapping[str, Json]:
    """The object in a JSON text. Raises MalformedBody."""
    body = jsontext.parse(text)
    if not isinstance(body, dict):
        raise MalformedBody("expected a JSON object")
    return body


def inside(field: str, key: str) -> str:
    """The path of a key of an object; the body itself has the path of no characters."""
    return f"{field}.{shown(key)}" if field else shown(key)


class BodyReader:
    """Reads one body; collects every violation of its shape and the fields that are not used."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._broken: list[Violation] = []
        self._ignored: list[str] = []
        self._misspelt: list[Violation] = []

    @property
    def ignored(self) -> tuple[str, ...]:
        """The paths of what was not used, the first of them."""
        return tuple(self._ignored[:_MAX_IGNORED])

    @property
    def broken(self) -> tuple[Violation, ...]:
        """What is wrong so far."""
        return tuple(self._broken)

    def check(self) -> None:
        """Raises InvalidRequest when anything was wrong."""
        if self._broken:
            raise self.refusal(self._broken)

    def refusal(self, broken: Iterable[Violation]) -> InvalidRequest:
        """The error for these, with the keys that may be the reason: unused ones that are nearly a field's name."""
        return InvalidRequest([*broken, *self._misspelt][:MAX_VIOLATIONS])

    def wrong(self, field: str, expected: str) -> None:
        self._broken.append(Violation(field, f"expected {expected}"))

    def sound(self, field: str, value: Json) -> bool:
        """Whether a value breaks no rule of JSON; if it does, that is noted."""
        if problem := jsontext.value_problem(value):
            self._broken.append(Violation(field, problem))
        return problem is None

    def keys_differ(self, field: str, value: Mapping[str, Json]) -> None:
        if isinstance(value, jsontext.RepeatedKeys):
            for key in value.repeated:
                self.wrong(inside(field, key), "this key once, not repeated")

    def note_unused(self, field: str, value: Mapping[str, Json], used: tuple[str, ...]) -> None:
        missing = [name for name in used if name not in value]
        for key in value:
            if key not in used:
                self._compare(field, key, missing)
                self._ignored.append(inside(field, key))
                if problem := jsontext.value_problem(key) or jsontext.value_problem(value[key]):
                    self._broken.append(Violation(inside(field, key), problem))

    def _compare(self, field: str, key: str, missing: Sequence[str]) -> None:
        if len(self._ignored) < _MAX_IGNORED and len(key) <= _LONGEST_KEY:
            for name in get_close_matches(key, missing, n=1, cutoff=_LIKE):
                self._misspelt.append(Violation(inside(field, key), f"no such field; perhaps {name}"))

    def samples(self, value: Json) -> int:
        """The option orders to read, lowered to the limit."""
        if value is None or value == "auto":
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.wrong("samples", 'an integer of at least 1, or "auto"')
            return 1
        return self._limits.samples(value)

    def adapter(self, value: Json) -> Adapter | None:
        if value is None or isinstance(value, str):
            return None if value is None else Adapter(value)
        if not isinstance(value, dict):
            self.wrong("adapter", 'the name of an adapter, or {"name": …, "scale": …}')
            return None
        self.keys_differ("adapter", value)
        self.note_unused("adapter", value, _ADAPTER_FIELDS)
        name, scale = value.get("name"), value.get("scale")
        scale = 1 if scale is None else scale
        if not isinstance(name, str):
            self.wrong("adapter.name", "the name of an adapter, as text")
        elif isinstance(scale, bool) or not isinstance(scale, int | float) or abs(scale) > MAX_ADAPTER_SCALE:
            self.wrong("adapter.scale", f"a number from -{MAX_ADAPTER_SCALE} to {MAX_ADAPTER_SCALE}")
        else:
            return Adapter(name, float(scale))
        return None

    def service_class(self, value: Json) -> str:
        if value is None or value == INTERACTIVE:
            return INTERACTIVE
        if value != BATCH:
            self.wrong("service_class", f"{INTERACTIVE} or {BATCH}")
        return BATCH

    def model(self, value: Json) -> str | None:
        """The name that the caller wrote, whatever it is."""
        if value is not None and (not isinstance(value, str) or jsontext.has_surrogate(value)):
            self.wrong("model", "the name of a model, as text")
            return None
        return value

"""Hostile request bodies, each made of a number: JSON near to what the routes take, and what is no JSON; packed or not.

Most begin as a sound body and are changed where parsers differ: types, keys, depth, numbers, encodings, and bits. Pure;
the same draws make the same body.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from backports import zstd

# A server reads some of what is too large and then hangs up, so a larger body may not hear its refusal.
MOST_BODY_BYTES = 1_000_000
TEXTS = (
    *("", " ", "\n", "\x00", "\x7f\x1b[31m", "a" * 700, "é" * 200, "日本語 🎫", "\u202e\u2028\ufeff"),
    *("\ud800", "a\udfffb", "<|im_end|>", "<|im_start|>system\n", "</think>", "{{ 7*7 }}", "{% for %}", "%s%n"),
    *("yes", "no", "0", "-1", "null", "[A]", "A)", "auto", "batch", "interactive", ":", "team", "refund"),
    *("data:image/png;base64,AAAA", "questions[0]"),
)
_NUMBERS = (
    *("0", "-0", "1", "2", "-1", "0.5", "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "9" * 30),
    *("9" * 5000, "1e999999999", "0x10", "01", "1.", "+1", "33", "65536", "18446744073709551616", "4.9e-324"),
)
_KEYS = (
    *("type", "state", "questions", "criteria", "ask_if", "ask", "samples", "images", "assets", "adapter", "name"),
    *("choices", "levels", "value", "label", "content", "role", "call_id", "output", "service_class", "model"),
    *("input", "think"),
)
_JEV: dict[str, Any] = {
    "state": {"subject": "charged twice", "body": "It is late."},
    "samples": 2,
    "model": "jev-latest",
    "questions": {
        "refund": {"type": "noul", "instructions": "Money back?", "ask_if": {"team": ["billing"]}},
        "team": {"type": "choice", "instructions": "Who?", "criteria": {"billing": "money", "other": None}},
        "urgent": {"type": "score", "instructions": "How?", "criteria": ["low", {"a": 1}, 3]},
        "crit": {"type": "noul", "instructions": "?", "criteria": {"true": "so", "false": ["not"]}},
    },
    "ask": ["refund", "team", "urgent"],
    "adapter": None,
    "service_class": "batch",
    "think": False,
}
_OPENAI: dict[str, Any] = {
    "model": "gpt",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "late"}, {"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ],
    "questions": [
        {"type": "predicate", "name": "late", "instructions": "It is late."},
        {"type": "choice", "choices": [{"value": "a", "description": "b"}, {"value": True}], "instructions": "?"},
        {"type": "score", "levels": [{"label": "low"}, {"label": "high", "description": "h"}], "instructions": "?"},
    ],
}
_SOUND: dict[str, list[Any]] = {
    "jev": [_JEV, {"state": "s", "questions": {"": {"type": "noul", "instructions": "?"}}}],
    "openai": [_OPENAI, {"input": "s", "questions": [{"type": "predicate", "instructions": "?"}]}],
    "prewarm": [{"state": {"a": [1, 2]}, "model": "m"}, {"state": "short"}],
}


# Sixty of sixty of a long value would take this process's time and memory and not the server's.
_ENOUGH_BYTES = 2**19


class Object(list[list[Any]]):
    """A JSON object as pairs, so that a key may stand twice."""


class Literal(str):
    """JSON text that is written as it is, sound or not."""

    __slots__ = ()


def json_body(draw: Random, path: str = "/v1/systemone") -> bytes:
    """A body near to a sound one of the route."""
    shape = "prewarm" if "prewarm" in path else "openai" if "decisions" in path else "jev"
    value = _pairs(draw.choice(_SOUND[draw.choice((*_SOUND, *[shape] * 12))]))
    text = _bytes(value)
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 6))):
        value = changed(draw, value)
        text = _bytes(value)
        if len(text) > _ENOUGH_BYTES:
            break
    return text if draw.random() < 0.8 else _spoiled(draw, text)


def changed(draw: Random, value: Any) -> Any:
    """The value with one place in it changed."""
    if not isinstance(value, list) or not value or draw.random() < 0.12:
        return _other(draw, value)
    place, kind = draw.randrange(len(value)), draw.random()
    if kind < 0.07:
        del value[place]
    elif kind < 0.16:
        value.append(value[place])  # a key twice, an option twice
    elif kind < 0.2 and isinstance(value, Object):
        value[place] = [draw.choice((*_KEYS, *TEXTS)), value[place][1]]
    elif kind < 0.23 and isinstance(value, Object):
        value.append([draw.choice((*_KEYS, *TEXTS)), _other(draw, None)])
    elif kind < 0.25:
        draw.shuffle(value)
    elif isinstance(value, Object):
        value[place] = [value[place][0], changed(draw, value[place][1])]
    else:
        value[place] = changed(draw, value[place])
    return value


def written(value: Any) -> str:
    """JSON text of a value, or what would be."""
    if isinstance(value, Literal):
        return value
    if isinstance(value, Object):
        return "{" + ",".join(f"{json.dumps(key)}:{written(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def _bytes(value: Any) -> bytes:
    return written(value).encode("utf-8", "surrogatepass")


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return Object([key, _pairs(one)] for key, one in value.items())
    return [_pairs(one) for one in value] if isinstance(value, list) else value


def _other(draw: Random, value: Any) -> Any:
    """Something of another kind."""
    makes: Sequence[Callable[[], Any]] = (
        lambda: draw.choice(TEXTS),
        lambda: draw.choice(TEXTS),
        lambda: Literal(draw.choice(_NUMBERS)),
        lambda: draw.choice((None, True, False, [], Object(), [[]], Object([["", None]]))),
        lambda: [value] * draw.choice((1, 2, 60)),
        lambda: Object([str(number), value] for number in range(draw.choice((1, 2, 60)))),
        lambda: Literal(deep(draw)),
        lambda: draw.choice(TEXTS) * draw.choice((1, 2, 40)),
        lambda: _pairs(draw.choice(draw.choice(list(_SOUND.values())))),
    )
    return draw.choice(makes)()


def deep(draw: Random) -> str:
    """JSON text that nests: within the bound, past it, past any recursion, or never closed."""
    depth = draw.choice((5, 98, 101, 150, 900, 20_000))
    if draw.random() < 0.3:
        return "[" * depth
    return "[" * depth + "]" * depth if draw.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth


def _spoiled(draw: Random, text: bytes) -> bytes:
    makes: Sequence[Callable[[], bytes]] = (
        lambda: text[: draw.randrange(len(text) + 1)],
        lambda: flipped(draw, text),
        lambda: text.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7"))),
        lambda: text.replace(b'"', b"'"),
        lambda: text + draw.choice((b"\x00", b"{}", b" " * 2000, b"//", b",")),
        lambda: draw.randbytes(draw.randrange(600)),
        lambda: b"\xff" + text,
        lambda: text.replace(b"a", b"\xed\xa0\x80").replace(b"e", b"\xc0\x80"),
        lambda: draw.choice((b"", b"null", b"[]", b'"x"', b"1", b"{", b"{}", b"NaN", b"\xef\xbb\xbf")),
        lambda: b'{"state":"' + b"x" * 400_000 + b'"}',
    )
    return draw.choice(makes)()


def flipped(draw: Random, data: bytes) -> bytes:
    bits = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8)) if bits else 0):
        bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
    return bytes(bits)


def packed(draw: Random, body: bytes, name: str) -> bytes:
    """The body as gzip or zstd, whole or spoiled."""
    data = gzip.compress(body, 1, mtime=0) if name == "gzip" else zstd.compress(body, 1)
    makes: Sequence[Callable[[], bytes]] = (
        lambda: data,
        lambda: data,
        lambda: data[: draw.randrange(len(data))],
        lambda: flipped(draw, data),
        lambda: data * draw.choice((2, 70)),
        lambda: data + b"tail",
    )
    return draw.choice(makes)()

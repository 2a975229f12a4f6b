"""The plot of growth: seconds against computed tokens, both logarithmic, a line per axis; plain SVG.

Pure text from rows. Knows nothing of how they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 420, 64, 48, 36, 24
_COLOURS = ("#2563a8", "#b4522d", "#3d7d3a")
_STYLE = "font-family: sans-serif; font-size: 12px; fill: #333"


class _Scale:
    """A logarithmic scale from whole powers of ten onto pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self._first + share * (self._last - self._first), 1)

    def ticks(self) -> list[float]:
        return [10.0**power * times for power in range(self.low, self.high) for times in (1, 2, 5)] + [10.0**self.high]


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """`rows`: axis, value, seconds, computed_tokens."""
    x = _Scale([row["computed_tokens"] for row in rows], _LEFT, _WIDTH - _RIGHT)
    y = _Scale([row["seconds"] for row in rows], _HEIGHT - _BOTTOM, _TOP)
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    parts = [*_grid(x, y)]
    for index, axis in enumerate(axes):
        parts += _line([row for row in rows if row["axis"] == axis], x, y, _COLOURS[index % len(_COLOURS)])
        parts.append(_text(_LEFT + 12, _TOP + 16 + 18 * index, f"more {axis}", _COLOURS[index % len(_COLOURS)]))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Seconds of a decision against its computed tokens">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _grid(x: _Scale, y: _Scale) -> list[str]:
    parts = [
        _text(_LEFT, _TOP - 14, "seconds of a decision on a new state"),
        _text(_WIDTH - _RIGHT, _HEIGHT - 10, "computed tokens", anchor="end"),
    ]
    for tick in x.ticks():
        parts.append(_rule(x(tick), _TOP, x(tick), _HEIGHT - _BOTTOM))
        parts.append(_text(x(tick), _HEIGHT - _BOTTOM + 16, f"{tick:,.0f}", anchor="middle"))
    for tick in y.ticks():
        parts.append(_rule(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick)))
        parts.append(_text(_LEFT - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    return parts


def _line(rows: Sequence[dict[str, Any]], x: _Scale, y: _Scale, colour: str) -> list[str]:
    spots = [(x(row["computed_tokens"]), y(row["seconds"])) for row in rows]
    path = " ".join(f"{a},{b}" for a, b in spots)
    dots = [
        f'<circle cx="{a}" cy="{b}" r="3.5" fill="{colour}"><title>{row["value"]:,} {row["axis"]}</title></circle>'
        for (a, b), row in zip(spots, rows, strict=True)
    ]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#e4e4e4"/>'


def _text(x: float, y: float, text: str, colour: str = "#333", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" style="{_STYLE}; fill: {colour}">{text}</text>'

"""The rope positions that multimodal models keep between calls: the decisions' own, and chat's left as they were.

Engine thread. mlx-vlm's models note where the last call's images and text lay, for the calls that go on from it. What
decisions call must not find chat's note, nor leave theirs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..backend import nn

_NAMES = ("_position_ids", "_rope_deltas", "rope_deltas")


class Positions:
    """The positions that one reader's calls leave on the model; to begin with, what the model had."""

    def __init__(self, model: Any) -> None:
        modules = model.modules() if isinstance(model, nn.Module) else [model]
        self._places = [(module, name) for module in modules for name in _NAMES if hasattr(module, name)]
        self._own = self._noted()

    @contextmanager
    def own(self) -> Iterator[None]:
        """The reader's positions while its calls are made inside the block, and what was there before after it."""
        others = self._noted()
        self._note(self._own)
        try:
            yield
        finally:
            self._own = self._noted()
            self._note(others)

    def _noted(self) -> list[Any]:
        return [getattr(module, name) for module, name in self._places]

    def _note(self, values: list[Any]) -> None:
        for (module, name), value in zip(self._places, values, strict=True):
            setattr(module, name, value)

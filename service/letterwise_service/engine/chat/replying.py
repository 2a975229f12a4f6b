"""The text of a reply as its tokens come: whole characters, and up to a stop text, wherever the tokens' borders lie.

Engine thread, one per row. Knows nothing of models or batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReplyText:
    """Gives, token by token, the text that can be shown. `stopped` once a stop text has come."""

    def __init__(self, detokenizer: Any, stops: Sequence[str]) -> None:
        """`detokenizer`: mlx-lm's streaming one, fresh; it keeps back what may be half of a character."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What the token lets be shown: nothing of what may turn out to be a stop text."""
        self._detokenizer.add_token(token)
        return self._shown(self._detokenizer.last_segment)

    def end(self) -> str:
        """The rest, when no more tokens come."""
        self._detokenizer.finalize()
        text = self._shown(self._detokenizer.last_segment)
        text, self._held = text + self._held, ""
        return text

    def _shown(self, more: str) -> str:
        self._held += more
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.stopped = True
            text, self._held = self._held[: min(starts)], ""
            return text
        cut = len(self._held) - max((_begun(self._held, stop) for stop in self._stops), default=0)
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the start of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)

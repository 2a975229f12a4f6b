"""How long one step of the reader takes, as measured lately: what a caller's deadline is held against.

Written by the engine thread, read by any. Knows nothing of jobs.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

# The median of so many: one step that stood still with the whole machine refuses nobody.
_LAST = 5
# A number that nothing renews must not refuse callers for ever: after this it is forgotten.
_FRESH_SECONDS = 30.0


class StepTime:
    """The usual wall time of a step."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=_LAST)
        self._last: tuple[float, float] | None = None  # the usual seconds, and when they were last measured

    @property
    def seconds(self) -> float | None:
        """None before anything was measured, and again when nothing has been for half a minute. Any thread."""
        last = self._last
        if last is None or time.monotonic() - last[1] > _FRESH_SECONDS:
            return None
        return last[0]

    def measured(self, seconds: float) -> None:
        """A step has taken so long."""
        self._measured.append(seconds)
        self._last = (statistics.median_low(self._measured), time.monotonic())

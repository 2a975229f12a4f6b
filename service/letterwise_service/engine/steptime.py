"""How long one step of the reader takes, as measured lately: what a deadline is held against.

Written by the engine thread, read by any. Knows nothing of jobs.
"""

from __future__ import annotations

import time

_KEPT = 0.8  # of the smoothed time, at each new measurement
# A number that nothing renews must not refuse callers for ever: after this it is forgotten.
_FRESH_SECONDS = 30.0


class StepTime:
    """The smoothed wall time of a step."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None  # the smoothed seconds, and when they were measured

    @property
    def seconds(self) -> float | None:
        """None before anything was measured, and again when nothing has been for half a minute. Any thread."""
        last = self._last
        if last is None or time.monotonic() - last[1] > _FRESH_SECONDS:
            return None
        return last[0]

    def measured(self, seconds: float) -> None:
        """A step has taken so long."""
        known = self.seconds
        smoothed = seconds if known is None else _KEPT * known + (1 - _KEPT) * seconds
        self._last = (smoothed, time.monotonic())

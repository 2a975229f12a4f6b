"""What becomes of an exception that ends a decision or a chat: a line in the log, and what its caller is told.

Engine thread. Knows nothing of jobs or rows.
"""

from __future__ import annotations

import logging

from ..errors import LetterwiseError, OutOfMemory
from . import headroom

_log = logging.getLogger(__name__)
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 30.0


def note(error: Exception, who: str) -> None:
    """Log a failure that is not a caller's own."""
    if headroom.refused(error):
        _log.warning("no memory for %s: %s", who, error)
    elif not isinstance(error, LetterwiseError):
        _log.error("%s failed", who, exc_info=error)


def told(error: Exception, what: str) -> LetterwiseError:
    """What the caller of a `what` (decision, chat) is told; of an unforeseen failure the log has the rest."""
    if headroom.refused(error):
        return OutOfMemory(f"the machine has no memory left for this {what}")
    if isinstance(error, LetterwiseError):
        return error
    wrapped = LetterwiseError(f"the {what} failed inside the engine")
    wrapped.__cause__ = error
    return wrapped


def retry_seconds(seconds: float) -> float:
    """The time that a refused caller is told to stay away, from an estimate of when there will be room."""
    return min(max(seconds, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)

"""Memory that is not there: how a refusal is known, what is let go of then, and the refusal that MLX lacks.

Engine thread. On Metal and CUDA MLX raises when it is given no memory. On a processor it does not look at what the
system gave (0.32), and its first use would end the process; so there a step's arrays are held against what the
machine has left before they are computed. How much a whole decision may take is admission's to bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import OutOfMemory
from .backend import mx
from .memory import available_bytes

# What a step takes beside its largest result, and what the rest of the process needs to go on.
SPARE_BYTES = 64 * 2**20
# Where so many times what is needed was left so lately, the system is not asked again.
_AMPLE, _RECENT_SECONDS = 8, 0.25
# MLX's words, in lower case: its own and Metal's allocator, a Metal command buffer, CUDA, C++.
_WORDS = (
    "unable to allocate",
    "attempting to allocate",
    "resource limit",
    "insufficient memory",
    "out of memory",
    "bad_alloc",
)


def refused(error: BaseException) -> bool:
    """Whether an exception says that there was no memory."""
    if isinstance(error, RuntimeError):
        text = str(error).lower()
        return any(words in text for words in _WORDS)
    return isinstance(error, MemoryError | OutOfMemory)


def release() -> None:
    """Give back what MLX keeps of freed buffers."""
    mx.clear_cache()


def ensure(arrays: Iterable[Any] = (), scratch_bytes: int = 0) -> None:
    """On a processor, raise OutOfMemory if the largest of `arrays`, not yet computed, cannot be had, or what is made on
    the way to them: `scratch_bytes`."""
    if mx.default_device() != mx.Device(mx.cpu):
        return
    needed = max((int(array.nbytes) for array in arrays), default=0) + scratch_bytes + SPARE_BYTES
    if _last.left(needed) < needed:
        release()
        if (left := _left()) < needed:
            raise OutOfMemory(f"a forward needs {needed} bytes of memory and {left} are left")


def fits(nbytes: int) -> bool:
    """Whether so much more can be had."""
    try:
        ensure(scratch_bytes=nbytes)
    except OutOfMemory:
        return False
    return True


@dataclass
class _Reading:
    """What was left when the system was last asked, which takes as long as a small forward."""

    at: float = -math.inf
    bytes: int = 0

    def left(self, needed: int) -> int:
        """What is left: of a moment ago, where that is more than enough."""
        if time.monotonic() - self.at > _RECENT_SECONDS or self.bytes < _AMPLE * needed:
            self.at, self.bytes = time.monotonic(), _left()
        return self.bytes


_last = _Reading()


def _left() -> int:
    left = available_bytes()
    return 2**63 - 1 if left is None else left

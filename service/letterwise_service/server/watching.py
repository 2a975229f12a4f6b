"""Whether files have changed: looked at when asked, and no more than once a second.

A change is a new time, size or inode of a file that the path leads to, so a link that was turned to another file, as
Kubernetes does with secrets, is one too. Reads no content; knows nothing of what the files are for. Any thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

LOOK_SECONDS = 1.0

_Seen: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class Watch:
    """The files of one setting. Made before they are first read, so that no change is missed."""

    def __init__(self, paths: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._next = clock() + LOOK_SECONDS
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether the files are others than at the last look; False without a look within a second of it."""
        if (now := self._clock()) < self._next:
            return False
        self._next = now + LOOK_SECONDS
        return self.moved()

    def moved(self) -> bool:
        """The same, with a look in any case."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> _Seen:
        return tuple(_seen(path) for path in self._paths)


def _seen(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

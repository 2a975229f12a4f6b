"""How a contender talks: JSON lines, a case in, a reply out, on what was stdout when it started.

Standard library only, since every contender's own environment imports it. Knows nothing of models or cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeAlias

Case: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Case], dict[str, Any]]


def serve(load: Callable[[], tuple[dict[str, Any], Answer]]) -> None:
    """Load once, say what was loaded, then answer one case after the other until stdin ends."""
    with _reply_stream() as out:
        about, answer = load()
        _write(out, about)
        for line in sys.stdin:
            _write(out, answer(json.loads(line)))


@contextlib.contextmanager
def clocked() -> Iterator[list[float]]:
    """The wall seconds that the block took, appended when it ends."""
    taken: list[float] = []
    started = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - started)


@contextlib.contextmanager
def _reply_stream() -> Iterator[IO[str]]:
    """The stdout that the driver reads; whatever a library prints goes to stderr instead."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        yield out


def _write(out: IO[str], reply: dict[str, Any]) -> None:
    out.write(json.dumps(reply) + "\n")
    out.flush()

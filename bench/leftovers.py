"""What a server in this process has left behind: arrays, resident memory, open files, threads.

Arrays are counted by the engine thread between two steps; the rest by whoever asks. Knows nothing of what was served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from letterwise_service.engine.thread import Engine

_PAGE_BYTES = 4096
_SELF = Path("/proc/self")


@dataclass(frozen=True)
class Standing:
    """What there is now; files and threads are 0 where the system does not say."""

    arrays_bytes: int
    resident_bytes: int
    files: int
    threads: int


async def standing(engine: Engine) -> Standing:
    """While it serves, with all that it keeps."""
    return _standing(await _on_engine(engine, _arrays_bytes))


async def bare(engine: Engine) -> Standing:
    """Once nothing runs, with all that it kept let go of: the model, and what has leaked."""
    while not await asyncio.to_thread(engine.wait_idle, 1.0):
        pass
    arrays_bytes = await _on_engine(engine, lambda: _emptied(engine))
    gc.collect()
    return _standing(arrays_bytes)


async def _on_engine(engine: Engine, call: Callable[[], int]) -> int:
    told = engine._errands.add(call)
    engine._queue.nudge()
    return await asyncio.wrap_future(told)


def _emptied(engine: Engine) -> int:
    assert engine._served is not None
    assert engine._lane is not None
    engine._served.store.clear()
    engine._lane._kept.clear()
    return _arrays_bytes()


def _arrays_bytes() -> int:
    from letterwise_service.engine.backend import mx

    return int(mx.get_active_memory())


def _standing(arrays_bytes: int) -> Standing:
    resident, files, threads = 0, 0, threading.active_count()
    with contextlib.suppress(OSError):  # proc(5)
        resident = int((_SELF / "statm").read_text().split()[1]) * _PAGE_BYTES
        files = sum(1 for _ in (_SELF / "fd").iterdir())
        threads = sum(1 for _ in (_SELF / "task").iterdir())
    return Standing(arrays_bytes, resident, files, threads)

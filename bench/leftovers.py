"""What a server in this process has left behind: arrays, resident memory, open files, threads.

Arrays are counted by the engine thread between two steps; the rest by whoever asks. Knows nothing of what was served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from letterwise_service.engine.thread import Engine

from .claims import on_engine

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
    return _standing(await asyncio.to_thread(on_engine, engine, arrays_bytes))


async def bare(engine: Engine) -> Standing:
    """Once nothing runs, with all that it kept let go of: the model, and what has leaked."""
    while not await asyncio.to_thread(engine.wait_idle, 1.0):
        pass
    await forget(engine)
    held = await asyncio.to_thread(on_engine, engine, arrays_bytes)
    gc.collect()
    return _standing(held)


async def forget(engine: Engine) -> None:
    """Let go of every kept prefix and of every prompt that chat keeps."""
    await asyncio.to_thread(on_engine, engine, partial(_empty, engine))


def _empty(engine: Engine) -> None:
    assert engine._served is not None
    assert engine._lane is not None
    engine._served.store.clear()
    engine._lane._kept.clear()


def arrays_bytes() -> int:
    """Bytes of every array that MLX holds: the models, the stores, what jobs compute."""
    from letterwise_service.engine.backend import mx

    return int(mx.get_active_memory())


def resident_bytes() -> int:
    """Memory of this process that is in use (proc(5))."""
    return int((_SELF / "statm").read_text().split()[1]) * _PAGE_BYTES


def _standing(held_bytes: int) -> Standing:
    resident, files, threads = 0, 0, threading.active_count()
    with contextlib.suppress(OSError):
        resident = resident_bytes()
        files = sum(1 for _ in (_SELF / "fd").iterdir())
        threads = sum(1 for _ in (_SELF / "task").iterdir())
    return Standing(held_bytes, resident, files, threads)

"""Small calls that other threads have the engine thread make between two steps.

Shared between threads, under one lock. Knows nothing of what is called.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import EngineDown

T = TypeVar("T")


class Errands:
    """Calls that wait for their turn; `run` makes them, `close` refuses them and all that come later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False

    def add(self, call: Callable[[], T]) -> Future[T]:
        """Any thread. Raises EngineDown when there is nobody to make the call any more."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise EngineDown("the engine has stopped")
            self._waiting.append((call, future))
        return future

    def run(self) -> None:
        """Make the calls that wait; what one raises is its caller's to hear, and the thread's too if it is fatal."""
        while (taken := self._next()) is not None:
            call, future = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
            except BaseException:  # the thread dies of it; the caller must not wait for ever
                _refuse(future)
                raise

    def close(self) -> None:
        """Refuse what waits and what comes."""
        with self._lock:
            self._closed = True
        while (taken := self._next()) is not None:
            _, future = taken
            if future.set_running_or_notify_cancel():
                _refuse(future)

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None


def _refuse(future: Future[Any]) -> None:
    future.set_exception(EngineDown("the engine has stopped"))

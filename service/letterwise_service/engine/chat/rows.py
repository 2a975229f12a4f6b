"""The rows of chat: one conversation each, and the bounded line in which they wait for a place in the batch.

Shared between threads: a row's stop event is set from any, the line is under one lock, and everything else of a row is
the engine thread's. Knows nothing of how text is generated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from ... import metrics
from ...errors import Cancelled, DeadlineExceeded, Draining, EngineDown, LetterwiseError, QueueFull
from ..events import ChatEvent, ChatFinished, ChatListener, Failed
from ..failures import retry_seconds
from .conversation import ChatPermit
from .replying import ReplyText

_log = logging.getLogger(__name__)
_numbers = count(1)


@dataclass(eq=False)
class ChatRow:
    """An admitted chat on its way."""

    permit: ChatPermit
    listener: ChatListener
    caller_deadline: float | None = None  # time.monotonic() at which the caller stops waiting
    submitted: float = field(default_factory=time.monotonic)
    number: int = field(default_factory=lambda: next(_numbers))
    started: float = 0.0  # time.monotonic() at which it got its place
    reused_tokens: int = 0
    output_tokens: int = 0
    text: ReplyText | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Leave the batch, or the line, before the next step. Any thread, any number of times."""
        self._stop.set()

    def departure(self) -> LetterwiseError | None:
        """Why nobody waits for it any more; None while somebody does. Any thread."""
        if self._stop.is_set():
            return Cancelled("the caller went away")
        if self.caller_deadline is not None and time.monotonic() > self.caller_deadline:
            return DeadlineExceeded("the deadline passed before the message was complete")
        return None

    def start(self, text: ReplyText) -> None:
        """It has its place."""
        self.started = time.monotonic()
        self.text = text

    def finish(self, model: str, reason: str) -> None:
        """The message is complete: `reason` is stop or length."""
        metrics.ended(metrics.CHAT, None)
        self.tell(
            ChatFinished(
                model=model,
                reason=reason,
                prompt_tokens=len(self.permit.ids),
                output_tokens=self.output_tokens,
                queue_seconds=self.started - self.submitted,
                total_seconds=time.monotonic() - self.submitted,
            )
        )

    def fail(self, error: LetterwiseError) -> None:
        metrics.ended(metrics.CHAT, error)
        self.tell(Failed(error))

    def tell(self, event: ChatEvent) -> None:
        try:
            self.listener(event)
        except BaseException:  # a listener's fault must not reach the engine or other rows
            _log.exception("the listener of chat %d raised", self.number)


class ChatLine:
    """Rows waiting and generating together: at most `places` that generate, and `waiting` more."""

    def __init__(self, places: int, waiting: int) -> None:
        self._places = places
        self._most = places + waiting
        self._changed = threading.Condition()
        self._waiting: deque[ChatRow] = deque()
        self._seated: list[ChatRow] = []
        self._refusal: type[Draining] | type[EngineDown] | None = None
        self._seconds = 0.0  # how long rows have been keeping their places, smoothed

    def put(self, row: ChatRow) -> None:
        """Raises QueueFull with a time to come back, Draining or EngineDown."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal("the service takes no new chats now")
            if len(self) >= self._most:
                here = f"{len(self._seated)} chats generate and {len(self._waiting)} wait"
                raise QueueFull(here, retry_after_seconds=self._retry_seconds())
            self._waiting.append(row)
            self._tell()

    def seat(self, fits: Callable[[Sequence[ChatRow]], bool]) -> ChatRow | None:
        """Give the first that waits a place, if there is one and it `fits` with those who have theirs."""
        with self._changed:
            if not self._waiting or len(self._seated) >= self._places:
                return None
            row = self._waiting[0]
            if self._seated and not fits([*self._seated, row]):
                return None
            self._seated.append(self._waiting.popleft())
            self._tell()
            return row

    def departed(self) -> list[tuple[ChatRow, LetterwiseError]]:
        """Rows for which nobody waits any more, waiting or generating, and why."""
        with self._changed:
            found = [(row, row.departure()) for row in [*self._seated, *self._waiting]]
        return [(row, error) for row, error in found if error is not None]

    def remove(self, row: ChatRow, *, finished: bool = False) -> None:
        """The row has ended, well when `finished`."""
        with self._changed:
            if row in self._seated:
                self._seated.remove(row)
            else:
                self._waiting.remove(row)
            if finished:
                seconds = time.monotonic() - row.started
                self._seconds = seconds if not self._seconds else 0.8 * self._seconds + 0.2 * seconds
            self._tell()

    def refuse(self, refusal: type[Draining] | type[EngineDown]) -> None:
        """Take nothing new from now on; what is here goes on."""
        with self._changed:
            if self._refusal is not EngineDown:  # the last word
                self._refusal = refusal

    def empty(self) -> list[ChatRow]:
        """Take out every row, generating and waiting."""
        with self._changed:
            rows = [*self._seated, *self._waiting]
            self._seated.clear()
            self._waiting.clear()
            self._tell()
            return rows

    def wait_idle(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not len(self), timeout_seconds)

    def __len__(self) -> int:
        return len(self._seated) + len(self._waiting)

    def _tell(self) -> None:
        """There is something new to see: for who waits, and for the metrics."""
        self._changed.notify_all()
        metrics.chats_changed(waiting=len(self._waiting), generating=len(self._seated))

    def _retry_seconds(self) -> float:
        """About when the next place is given up: rows end one after another, `places` of them in the time of one."""
        return retry_seconds(self._seconds / self._places)

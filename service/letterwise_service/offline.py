"""One decision in this process, without a server: the same engine, the same request, the same numbers.

Owns the wait between the calling thread and the engine thread. Knows nothing of files, flags or printing.
"""

from __future__ import annotations

import dataclasses
import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .engine.events import Answered, Completed, Diagnostics, Event, Failed, Listener, WasSkipped
from .method import jev
from .method.answers import Answer, Skipped
from .method.request import DecisionRequest

if TYPE_CHECKING:
    from .engine.thread import Engine


@dataclass(frozen=True)
class Decided:
    """A decision's whole outcome; answers and skips in the request's order."""

    model: str
    outcomes: tuple[Answer | Skipped, ...]
    diagnostics: Diagnostics

    def jev_reply(self) -> dict[str, Any]:
        """The reply as the Jev route gives it."""
        answers = [outcome for outcome in self.outcomes if not isinstance(outcome, Skipped)]
        return jev.reply(self.model, answers, dataclasses.asdict(self.diagnostics))


def decide(engine: Engine, request: DecisionRequest, watch: Listener = lambda event: None) -> Decided:
    """Runs one decision on a ready engine and waits for it; `watch` sees each event on the calling thread.

    Raises whatever the decision failed with.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    job = engine.submit(engine.admit(request), events.put)
    outcomes: dict[str, Answer | Skipped] = {}
    try:
        while True:
            event = events.get()
            watch(event)
            match event:
                case Answered(outcome) | WasSkipped(outcome):
                    outcomes[outcome.id] = outcome
                case Failed(error):
                    raise error
                case Completed():
                    ordered = tuple(outcomes[q.id] for q in request.questions if q.id in outcomes)
                    return Decided(event.model, ordered, event.diagnostics)
    finally:
        job.cancel()

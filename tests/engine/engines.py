"""Real engines under test: questions to ask, a gate that holds the engine thread, and a short way to submit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from letterwise_service.engine.events import Accepted
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import INTERACTIVE, Choice, DecisionRequest, Noul, Option, Score
from tests.engine.conftest import Heard

LATE = Noul("late", "Is it late?")
WHICH = Choice("which", "Which one?", tuple(Option(f"o{i}") for i in range(60)))
BAD = Score("bad", "How bad?", ("low", "middle", "high"))
STATE = "A parcel of books arrived two days late. " * 6


class Gate:
    """Holds the engine thread inside a listener until `open`, so that what waits behind it is known."""

    def __init__(self, engine: Engine) -> None:
        self._open = threading.Event()
        self._inside = threading.Event()
        self.heard = Heard(also=self._hold)
        self.job = engine.submit(engine.admit(DecisionRequest("gate", (LATE,))), self.heard)
        assert self._inside.wait(30)

    def _hold(self, event: Any) -> None:
        if isinstance(event, Accepted):
            self._inside.set()
            assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


def submit(
    engine: Engine,
    *questions: Any,
    state: Any = STATE,
    samples: int = 1,
    service_class: str = INTERACTIVE,
    also: Callable[[Any], None] | None = None,
    **settings: Any,
) -> tuple[Job, Heard]:
    heard = Heard(also)
    request = DecisionRequest(state, questions or (LATE,), samples=samples, service_class=service_class)
    permit = engine.admit(request)
    return engine.submit(permit, heard, **settings), heard

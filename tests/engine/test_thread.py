"""A whole engine on a tiny model folder: decisions in flight together, refusals, drain and close."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine.budgets import Permit
from letterwise_service.engine.events import Accepted, Completed, Failed
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    EngineDown,
    QueueFull,
    TooLong,
)
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option
from tests.engine.conftest import Heard
from tests.engine.engines import BAD, LATE, STATE, WHICH, Gate, submit


def test_ready_engine_says_what_it_serves(engine: Engine, folder: Path) -> None:
    """The model's facts, once it is warm; and an empty store."""
    info = engine.wait_ready(1)
    assert (info.model, info.architecture, info.path, info.tier) == ("tiny", "llama", "rows", "exact")
    assert (info.context_tokens, info.problem, info.prompt_style) == (4096, None, "plain")
    assert engine.alive
    assert engine.describe_store().tier == "exact"


@pytest.mark.parametrize("flights", [2, 5])
def test_decisions_in_flight_together_have_the_bits_they_have_alone(engine: Engine, flights: int) -> None:
    """Requests of all kinds, interleaved step by step, answer exactly as one after the other."""
    kinds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((LATE, WHICH, BAD), {}),
        ((WHICH,), {"state": STATE + "And wet.", "samples": 4}),
        ((Choice("many", "Which?", tuple(Option(f"{i}") for i in range(106))),), {"state": "x" * 300}),
        ((BAD, LATE), {"state": "x"}),
        ((LATE, BAD), {}),
    ][:flights]
    requests = [DecisionRequest(kind.pop("state", STATE), asked, **kind) for asked, kind in kinds]
    alone = [decided(engine, request) for request in requests]
    assert together(engine, requests) == alone
    served = engine._served
    assert served is not None
    served.store.clear()
    assert together(engine, requests) == alone


def decided(engine: Engine, request: DecisionRequest) -> dict[str, Any]:
    heard = Heard()
    engine.submit(engine.admit(request), heard)
    return heard.outcomes()


def together(engine: Engine, requests: list[DecisionRequest]) -> list[dict[str, Any]]:
    """The outcomes of requests that were all in flight before the first of them ended."""
    order: list[tuple[int, str]] = []

    def noting(i: int) -> Heard:
        return Heard(also=lambda event: order.append((i, type(event).__name__)))

    gate, heard = Gate(engine), [noting(i) for i in range(len(requests))]
    for request, one in zip(requests, heard, strict=True):
        engine.submit(engine.admit(request), one)
    gate.open()
    found = [one.outcomes() for one in heard]
    ends = [order.index((i, "Completed")) for i in range(len(requests))]
    assert order.index((len(requests) - 1, "Accepted")) < min(ends)
    return found


def test_streamed_events_are_the_whole_reply(engine: Engine) -> None:
    """Accepted first, completed last, and between them an answer or a skip for each question, once."""
    skipped = Noul("no", "?", ask_if={"late": ("yes",)})
    not_skipped = Noul("yes", "?", ask_if={"late": ("no",)})
    _, heard = submit(engine, LATE, WHICH, BAD, skipped, not_skipped)
    told = heard.completed().diagnostics
    assert isinstance(heard.events[0], Accepted)
    assert isinstance(heard.events[-1], Completed)
    assert set(heard.outcomes()) == {"late", "which", "bad", "no", "yes"}
    assert [one.id for one in told.skipped] in (["no"], ["yes"])
    assert told.stages == 2
    names = [type(event).__name__ for event in heard.events]
    assert names.count("Answered") + names.count("WasSkipped") == 5


def test_prewarmed_state_is_reused(engine: Engine) -> None:
    """A state read beforehand costs its decision nothing again, and changes no bit of it."""
    state = "read before " * 30
    cold = submit(engine, LATE, state=state)[1].outcomes()
    assert engine._served is not None
    engine._served.store.clear()
    warmed = Heard()
    engine.submit(engine.admit_state(state), warmed)
    stored = warmed.completed().diagnostics.prefix
    assert (stored.stored, stored.reused_tokens) == (True, 0)
    _, heard = submit(engine, LATE, state=state)
    assert heard.completed().diagnostics.prefix.reused_tokens == stored.tokens
    assert heard.outcomes() == cold


def test_cancelled_decisions_end_and_leave_the_others_alone(engine: Engine) -> None:
    """Of five in flight two are cancelled, waiting or running: those end as cancelled, the others as always."""
    alone = submit(engine, WHICH)[1].outcomes()
    gate = Gate(engine)
    flights = [submit(engine, WHICH) for _ in range(5)]
    flights[1][0].cancel()
    flights[3][0].cancel()
    gate.open()
    for i, (_, heard) in enumerate(flights):
        if i in (1, 3):
            assert isinstance(heard.error(), Cancelled)
            assert len(heard.events) == 1
        else:
            assert heard.outcomes() == alone
    assert engine.wait_idle(10)


def test_deadlines_of_caller_and_job_end_the_decision(engine: Engine, started: Callable[..., Engine]) -> None:
    """The caller's time runs in the queue too; the job's own only from when it leaves it."""
    gate = Gate(engine)
    _, heard = submit(engine, LATE, deadline_seconds=0.5)
    time.sleep(0.6)
    gate.open()
    assert isinstance(heard.error(), DeadlineExceeded)
    short = started(job_deadline_seconds=1e-9)
    short.wait_ready(60)
    assert isinstance(submit(short)[1].error(), DeadlineExceeded)


def test_full_queue_refuses_with_a_time(started: Callable[..., Engine]) -> None:
    """The third of two places is refused at once with a time to come back; when there is room it is taken."""
    small = started(queue_jobs=2)
    small.wait_ready(60)
    gate = Gate(small)
    waiting = submit(small)[1]
    with pytest.raises(QueueFull) as refused:
        submit(small)
    assert 1.0 <= refused.value.retry_after_seconds <= 30.0
    gate.open()
    waiting.completed()
    assert small.wait_idle(10)
    submit(small)[1].completed()


def test_drain_lets_the_admitted_end(started: Callable[..., Engine]) -> None:
    """New decisions are refused while those inside go on to their answers."""
    draining = started()
    draining.wait_ready(60)
    gate = Gate(draining)
    _, heard = submit(draining, WHICH)
    draining.drain()
    with pytest.raises(Draining):
        submit(draining)
    assert not draining.wait_idle(0.01)
    gate.open()
    heard.completed()
    assert draining.wait_idle(10)
    assert draining.alive


def test_close_ends_every_job(started: Callable[..., Engine]) -> None:
    """Running and waiting jobs are told that the engine is down; later ones are refused; closing again is nothing."""
    closing = started()
    closing.wait_ready(60)
    gate = Gate(closing)
    flights = [submit(closing, WHICH)[1] for _ in range(12)]
    threading.Timer(0.1, gate.open).start()
    closing.close()
    errors = [one.error() for one in [*flights, gate.heard]]
    assert all(isinstance(error, EngineDown) for error in errors)
    assert not closing.alive
    with pytest.raises(EngineDown):
        submit(closing)
    closing.drain()
    with pytest.raises(EngineDown):
        submit(closing)
    closing.close()


def test_close_from_a_listener_is_no_deadlock(started: Callable[..., Engine]) -> None:
    """A listener, which is on the engine thread, may close the engine."""
    closing = started()
    closing.wait_ready(60)
    heard = Heard(also=lambda event: closing.close())
    closing.submit(closing.admit(DecisionRequest("x", (LATE,))), heard)
    assert isinstance(heard.error(), EngineDown)
    closing._thread.join(10)
    assert not closing.alive


def test_close_while_loading_ends_the_engine(started: Callable[..., Engine]) -> None:
    """An engine that is closed before it is ready ends by itself and nobody waits for it in vain."""
    closing = started()
    closing.close()
    assert not closing.alive
    with pytest.raises(EngineDown):
        closing.submit(Permit(None, (1,), {}, 0, 1, 0), Heard())


def test_close_before_start_is_nothing(folder: Path) -> None:
    """An engine that was never started has nothing to end."""
    Engine(EngineConfig(model=str(folder))).close()


def test_too_long_a_request_is_refused_at_the_door(engine: Engine) -> None:
    """What does not fit the context is never queued."""
    with pytest.raises(TooLong) as refused:
        submit(engine, state="x" * 4000)
    assert refused.value.limit_tokens == 4096 - 128


def test_events_of_a_failed_job_end_with_its_failure(engine: Engine) -> None:
    """Failed is the last event of a job, and there is one."""
    job, heard = submit(engine, WHICH)
    job.cancel()
    last = heard.end()
    if isinstance(last, Failed):  # cancelled in time
        assert [type(event) for event in heard.events].count(Failed) == 1
        assert not any(isinstance(event, Completed) for event in heard.events)

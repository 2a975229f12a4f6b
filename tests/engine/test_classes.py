"""Classes of service: what batch work may take, and that interactive work does not notice it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.events import Accepted, Answered, Completed, PrefixProgress
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.lineup import RUNNING_BATCH_JOBS, RUNNING_JOBS, JobQueue
from letterwise_service.engine.steps import Served
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import Cancelled, QueueFull
from letterwise_service.method.request import BATCH, INTERACTIVE
from tests.engine.conftest import Heard
from tests.engine.decisions import LATE, WHICH, decide, make, service, unpinned
from tests.engine.engines import Gate, submit
from tests.engine.lines import job, queued, run, turns

LONG = "A parcel of books arrived two days late. " * 25
OTHER = "Nobody was at home, so it went back. " * 25


def batch(tokens: int = 10) -> Job:
    return job(tokens, service_class=BATCH)


def test_batch_jobs_get_no_turn_beside_an_interactive_one() -> None:
    """However many wait or run, the interactive job has every turn until it ends; then theirs go round."""
    first, second, third = batch(), batch(), batch()
    queue = queued([first, second, third])
    assert turns(queue, 3) == [(first, True), (second, True), (first, False)]
    one = job()
    queue.put(one)
    assert turns(queue, 5) == [(one, True), *[(one, False)] * 4]
    queue.remove(one)
    assert turns(queue, 3) == [(second, False), (first, False), (second, False)]
    queue.remove(first)
    assert turns(queue, 2) == [(second, False), (third, True)]


def test_batch_jobs_hold_few_places_and_none_of_the_others() -> None:
    """Two batch jobs run, and eight interactive ones leave the queue all the same."""
    waiting = [batch() for _ in range(4)]
    queue = queued(waiting)
    started = [turn for turn in turns(queue, 6) if turn is not None and turn[1]]
    assert started == [(one, True) for one in waiting[:RUNNING_BATCH_JOBS]]
    ones = [job() for _ in range(RUNNING_JOBS + 1)]
    for one in ones:
        queue.put(one)
    assert turns(queue, RUNNING_JOBS + 1) == [*((one, True) for one in ones[:RUNNING_JOBS]), (ones[0], False)]


def test_batch_jobs_that_are_gone_leave_at_once() -> None:
    """A cancelled one ends before anybody's turn: it takes no forward, and its caller is told."""
    one, gone = job(), batch()
    queue = queued([one, batch(), batch(), gone])
    assert queue.turn(wait=False) == (one, True)
    gone.cancel()
    assert queue.turn(wait=False) == (gone, True)


def test_batch_jobs_fill_half_of_the_queue() -> None:
    """Half of the jobs and half of the tokens; a single one that is larger is taken when there is no other."""
    queue = queued([batch(), batch()], max_jobs=4)
    with pytest.raises(QueueFull, match="2 decisions with 20 prompt tokens"):
        queue.put(batch())
    queue = queued([batch(40)], max_tokens=100)
    with pytest.raises(QueueFull):
        queue.put(batch(11))
    queue.put(batch(10))
    queue = queued([batch(80)], max_tokens=100)
    with pytest.raises(QueueFull):
        queue.put(batch(1))


def test_interactive_jobs_are_not_refused_for_batch_ones() -> None:
    """With the batch half full every interactive place is still there; with those full, batch is what is refused."""
    queue = queued([batch(30), batch(20)], max_jobs=4, max_tokens=100)
    for _ in range(4):
        queue.put(job(25))
    with pytest.raises(QueueFull, match="4 decisions with 100 prompt tokens"):
        queue.put(job(1))
    queue = queued([job() for _ in range(3)], max_jobs=4)
    queue.put(batch())
    with pytest.raises(QueueFull, match="4 decisions"):
        queue.put(batch())
    queue = queued([job(70)], max_tokens=100)
    with pytest.raises(QueueFull):
        queue.put(batch(31))
    queue.put(batch(30))


def test_time_to_come_back_is_of_the_callers_class() -> None:
    """Interactive callers wait for interactive work, batch callers for both, each at the rate at which it leaves."""
    queue = JobQueue(4, 100_000)
    run(queue, job(100), seconds=1.0)
    run(queue, batch(100), seconds=10.0)
    for tokens in (100, 200, 300, 200):
        queue.put(job(tokens))
    with pytest.raises(QueueFull) as refused:
        queue.put(job())
    assert refused.value.retry_after_seconds == pytest.approx(4.0, rel=0.05)
    with pytest.raises(QueueFull) as refused:
        queue.put(batch())
    assert refused.value.retry_after_seconds == pytest.approx(4.0, rel=0.05)
    queue.empty()
    queue.put(job(400))
    queue.put(batch(60))
    queue.put(batch(60))
    with pytest.raises(QueueFull) as refused:
        queue.put(batch())
    assert refused.value.retry_after_seconds == pytest.approx((400 / 100 + 120 / 10) / 2, rel=0.05)


def step(queue: JobQueue, served: Served) -> Job:
    """One turn as the engine takes it; whose it was."""
    turn = queue.turn(wait=False)
    assert turn is not None
    one, leaves = turn
    if leaves:
        one.start(served)
    if one.advance():
        queue.remove(one)
    return one


def steps(queue: JobQueue, served: Served) -> list[Job]:
    """Turns until nothing is left."""
    taken: list[Job] = []
    while len(queue):
        taken.append(step(queue, served))
        assert len(taken) < 200, "it never ends"
    return taken


def test_prefix_that_a_batch_job_reads_is_read_on_for_whoever_waits_for_it(served: Served) -> None:
    """The batch job gets turns, before other batch jobs, until the state is read; the interactive one answers next."""
    cold = decide(service(served.reader), LATE, state=LONG)
    (reading, told), (other, _) = make(LATE, state=LONG, service_class=BATCH), make(state=OTHER, service_class=BATCH)
    queue = queued([reading, other])
    assert [step(queue, served) for _ in range(2)] == [reading, other]
    waiting, heard = make(LATE, state=LONG)
    queue.put(waiting)
    assert step(queue, served) is waiting
    assert [type(event) for event in heard.events] == [Accepted]
    taken = steps(queue, served)
    end = max(i for i, one in enumerate(taken) if one is waiting)
    handed = taken.index(waiting)
    assert taken[:handed] == [reading] * handed
    assert handed >= 2
    assert taken[handed : end + 1] == [waiting] * (end + 1 - handed)
    assert heard.outcomes() == told.outcomes() == cold
    assert heard.completed().diagnostics.prefix.reused_tokens == len(waiting.permit.prefix)
    assert unpinned(served)


def test_another_state_of_an_interactive_job_stops_the_batch_job(served: Served) -> None:
    """In the middle of its prefix the batch job waits until the interactive one has its answers."""
    reading, told = make(LATE, state=LONG, service_class=BATCH)
    queue = queued([reading])
    step(queue, served)
    one, heard = make(LATE, WHICH, state=OTHER)
    queue.put(one)
    taken = steps(queue, served)
    end = taken.index(reading)
    assert taken[:end] == [one] * end
    assert heard.outcomes() == decide(service(served.reader), LATE, WHICH, state=OTHER)
    told.completed()


def test_waiting_for_a_batch_job_ends_with_it(served: Served) -> None:
    """When the batch job that reads is cancelled, the interactive one that waits reads on, before other batch work."""
    (reading, told), (other, _) = make(LATE, state=LONG, service_class=BATCH), make(state=OTHER, service_class=BATCH)
    queue = queued([reading, other])
    step(queue, served)
    one, heard = make(LATE, state=LONG)
    queue.put(one)
    step(queue, served)
    reading.cancel()
    taken = steps(queue, served)
    assert isinstance(told.error(), Cancelled)
    assert taken[0] is reading
    assert taken[1 : taken.index(other)] == [one] * (taken.index(other) - 1)
    assert heard.completed().diagnostics.prefix.reused_tokens == 256
    assert unpinned(served)


def test_blocked_job_that_is_cancelled_ends_at_once(served: Served) -> None:
    """Waiting for a batch job's prefix, it needs no forward of anybody's to hear that its caller has gone."""
    reading, _ = make(LATE, state=LONG, service_class=BATCH)
    queue = queued([reading])
    step(queue, served)
    one, heard = make(LATE, state=LONG)
    queue.put(one)
    step(queue, served)
    assert one.blocked
    one.cancel()
    assert step(queue, served) is one
    assert isinstance(heard.error(), Cancelled)
    steps(queue, served)


def test_blocked_jobs_take_no_turns(served: Served) -> None:
    """Of jobs on one state, the one that reads it has all the turns until the others can go on."""
    ones = [make(LATE, state=LONG)[0] for _ in range(4)]
    queue = queued(ones)
    assert [step(queue, served) for _ in range(4)] == ones
    taken = steps(queue, served)
    handed = min(taken.index(one) for one in ones[1:])
    assert taken[:handed] == [ones[0]] * handed
    assert handed >= 2


def test_interactive_job_waits_for_one_step_of_batch_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted in the middle of a batch job's step, it has every turn from the next one to its end."""
    order: list[str] = []
    came: list[Heard] = []
    plain = Job.advance

    def noted(one: Job) -> bool:
        order.append(one.permit.service_class)
        return plain(one)

    def come(event: Any) -> None:
        if isinstance(event, PrefixProgress) and event.done_tokens == 512 and not came:
            order.append("submitted")
            came.append(submit(engine, WHICH, state=OTHER + "interactive")[1])

    gate = Gate(engine)
    flood = [submit(engine, WHICH, state=f"{i} {LONG}", service_class=BATCH, also=come)[1] for i in range(5)]
    monkeypatch.setattr(Job, "advance", noted)
    gate.open()
    assert all(isinstance(one.end(), Completed) for one in flood)
    after = order[order.index("submitted") + 1 :]
    taken = after.index(BATCH)
    assert taken >= 4
    assert after[:taken] == [INTERACTIVE] * taken
    assert INTERACTIVE not in after[taken:]
    assert [type(event) for event in came[0].events].count(Answered) == 1
    assert engine.wait_idle(10)


class Reading:
    """What a started job's account says of it."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits


def begun(queue: JobQueue, one: Job, *, waits: bool = False) -> Job:
    queue.put(one)
    assert queue.turn(wait=False) == (one, True)
    one._account = Reading(waits=waits)  # type: ignore[assignment]
    return one


def test_waiting_job_lends_its_turn_to_the_batch_job_that_reads_for_it() -> None:
    """However many others come, the prefix is read at the pace that the waiting job's own turns have."""
    queue = JobQueue(100, 10_000)
    reading = begun(queue, batch())
    waiting = begun(queue, job(), waits=True)
    idle = batch()
    queue.put(idle)
    had = {reading: 0, waiting: 0, idle: 0}
    for number in range(100):
        other = job()
        other.permit = replace(other.permit, prefix=(9, 9, number))
        queue.put(other)
        turn = queue.turn(wait=False)
        assert turn is not None
        if turn[0] in had:
            had[turn[0]] += 1
        else:
            queue.remove(turn[0])
    assert had[reading] >= 100 // RUNNING_JOBS
    assert had[waiting] == had[idle] == 0


def test_running_batch_job_that_is_gone_leaves_beside_interactive_work() -> None:
    """Cancelled, or its caller's time past: it gives its place back, though it has no turn of its own."""
    for end in (Job.cancel, lambda one: setattr(one, "caller_deadline", 0.0)):
        queue = JobQueue(100, 10_000)
        gone, one = begun(queue, batch()), begun(queue, job())
        assert queue.turn(wait=False) == (one, False)
        end(gone)
        assert queue.turn(wait=False) == (gone, False)
        queue.remove(gone)
        assert queue.turn(wait=False) == (one, False)

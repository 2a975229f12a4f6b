"""The queue and the turns: bounds, order, refusals, and jobs whose callers have gone."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letterwise_service.engine.jobs import Job
from letterwise_service.engine.lineup import RUNNING_JOBS, JobQueue
from letterwise_service.engine.steptime import StepTime
from letterwise_service.errors import DeadlineExceeded, Draining, EngineDown, QueueFull
from tests.engine.lines import job, queued, run, turns


def test_turns_go_round() -> None:
    """New jobs start at once, in the order in which they came; then each gets its step in turn."""
    jobs = [job() for _ in range(3)]
    queue = queued(jobs)
    assert turns(queue, 3) == [(one, True) for one in jobs]
    assert turns(queue, 6) == [(one, False) for one in [*jobs, *jobs]]
    queue.remove(jobs[1])
    assert turns(queue, 4) == [(jobs[i], False) for i in (0, 2, 0, 2)]


def test_few_jobs_run_at_once() -> None:
    """The ninth waits until one of the eight has ended."""
    jobs = [job() for _ in range(RUNNING_JOBS + 1)]
    queue = queued(jobs)
    assert turns(queue, 9) == [*((one, True) for one in jobs[:8]), (jobs[0], False)]
    queue.remove(jobs[3])
    assert turns(queue, 8) == [*((jobs[i], False) for i in (1, 2, 4, 5, 6, 7, 0)), (jobs[8], True)]


@given(st.lists(st.integers(1, 30), min_size=2, max_size=60), st.integers(0, 40))
def test_nobody_waits_more_than_a_turn(steps: list[int], at_first: int) -> None:
    """Jobs of one step and jobs of many, and a new one whenever one ends: each running job has every eighth turn."""
    left = {job(): count for count in steps}
    coming = deque(left)
    queue, last = JobQueue(100, 10_000), dict.fromkeys(left, 0)
    for _ in range(min(at_first, len(left))):
        queue.put(coming.popleft())
    for now in count(1):
        if coming and len(queue) <= RUNNING_JOBS:
            queue.put(coming.popleft())
        if (turn := queue.turn(wait=False)) is None:
            break
        one, first = turn
        assert first or now - last[one] <= RUNNING_JOBS
        last[one], left[one] = now, left[one] - 1
        if not left[one]:
            queue.remove(one)
    assert set(left.values()) == {0}


def test_jobs_of_callers_who_left_go_first() -> None:
    """A cancelled or expired job leaves the queue at once, though eight run, and makes its place free."""
    jobs = [job() for _ in range(RUNNING_JOBS + 3)]
    queue = queued(jobs[:RUNNING_JOBS], max_jobs=11)
    for _ in range(RUNNING_JOBS):
        queue.turn(wait=False)
    jobs[10] = job(caller_deadline=time.monotonic() + 0.05)
    for one in jobs[RUNNING_JOBS:]:
        queue.put(one)
    jobs[9].cancel()
    time.sleep(0.06)
    with pytest.raises(QueueFull):
        queue.put(job())
    for gone in (jobs[9], jobs[10]):
        assert queue.turn(wait=False) == (gone, True)
        queue.remove(gone)
    queue.put(job())
    assert len(queue) == 10
    assert queue.turn(wait=False) == (jobs[0], False)


def test_queue_is_bounded_by_jobs() -> None:
    """Waiting and running count together; a place is free again when a job has ended."""
    first, second = job(), job()
    queue = queued([first, second], max_jobs=2)
    queue.turn(wait=False)
    with pytest.raises(QueueFull, match="2 decisions") as refused:
        queue.put(job())
    assert 1.0 <= refused.value.retry_after_seconds <= 30.0
    queue.remove(first)
    queue.put(job())


def test_queue_is_bounded_by_tokens() -> None:
    """Many tokens wait their turn outside; a single decision larger than the bound is taken when nothing else is."""
    queue = queued([job(60)], max_tokens=100)
    with pytest.raises(QueueFull):
        queue.put(job(41))
    queue.put(job(40))
    queue.empty()
    queue.put(job(500))
    with pytest.raises(QueueFull):
        queue.put(job(1))


def test_time_to_come_back_follows_the_work_that_waits() -> None:
    """Half of what is queued, at the rate at which jobs have been ending; between 1 and 30 seconds."""
    queue = JobQueue(3, 10_000)
    run(queue, job(100), seconds=1.0)
    for tokens in (700, 500, 200):
        queue.put(job(tokens))
    with pytest.raises(QueueFull) as refused:
        queue.put(job(1))
    assert refused.value.retry_after_seconds == pytest.approx(7.0, rel=0.05)


@pytest.mark.parametrize(("tokens", "expected"), [(3, 1.0), (9_000, 30.0)])
def test_time_to_come_back_has_its_bounds(tokens: int, expected: float) -> None:
    """Never less than a second, nor more than half a minute."""
    queue = JobQueue(1, 10_000)
    run(queue, job(100), seconds=1.0)
    queue.put(job(tokens))
    with pytest.raises(QueueFull) as refused:
        queue.put(job(1))
    assert refused.value.retry_after_seconds == expected


def test_cancelled_jobs_teach_no_rate() -> None:
    """A thousand cancelled jobs, each gone in no time, do not make the queue seem fast."""
    queue = JobQueue(1, 100_000)
    run(queue, job(100), seconds=1.0)
    for _ in range(1000):
        run(queue, job(100), seconds=0.0, completed=False)
    queue.put(job(1000))
    with pytest.raises(QueueFull) as refused:
        queue.put(job(1))
    assert refused.value.retry_after_seconds == pytest.approx(5.0, rel=0.05)


def test_refusals_name_their_reason_and_down_is_the_last() -> None:
    """A drain refuses newcomers and leaves what is there; once the engine is down, no drain makes it up again."""
    queue = queued([job()])
    queue.refuse(Draining)
    with pytest.raises(Draining):
        queue.put(job())
    assert queue.turn(wait=False) is not None
    queue.refuse(EngineDown)
    queue.refuse(Draining)
    with pytest.raises(EngineDown):
        queue.put(job())


def test_empty_takes_out_waiting_and_running() -> None:
    """Every job comes out once, and the queue is idle."""
    jobs = [job() for _ in range(RUNNING_JOBS + 2)]
    queue = queued(jobs)
    for _ in range(5):
        queue.turn(wait=False)
    assert sorted(queue.empty(), key=lambda one: one.number) == jobs
    assert len(queue) == 0
    assert queue.turn(wait=False) is None
    assert queue.wait_idle(0)


def test_turn_waits_for_a_job_or_the_end() -> None:
    """An idle engine sleeps until something is put, or until it is told to stop."""
    queue, seen = JobQueue(2, 100), []
    came = threading.Event()

    def sleep() -> None:
        seen.append(queue.turn(wait=True))
        queue.empty()
        came.set()
        seen.append(queue.turn(wait=True))

    thread = threading.Thread(target=sleep)
    thread.start()
    one = job()
    queue.put(one)
    assert came.wait(10)
    queue.refuse(EngineDown)
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [(one, True), None]


def test_wait_idle_says_whether_all_ended() -> None:
    """False while a job is there when the time is up, true as soon as the last has gone."""
    one = job()
    queue = queued([one])
    assert not queue.wait_idle(0.01)
    queue.turn(wait=False)
    threading.Timer(0.05, queue.remove, [one]).start()
    assert queue.wait_idle(10)


def test_nudge_ends_a_wait_without_a_job() -> None:
    """Whoever waits for a turn comes back with none, once, and a later job is not lost by it."""
    queue = queued([])
    threading.Timer(0.05, queue.nudge).start()
    assert queue.turn(wait=True) is None
    one = job()
    threading.Timer(0.05, lambda: queue.put(one)).start()
    assert queue.turn(wait=True) == (one, True)


def test_caller_whose_time_is_shorter_than_a_step_is_refused_at_once() -> None:
    """With both numbers, before it is queued; before any step was measured nobody is."""
    queue, step_time = queued([]), StepTime()
    soon = time.monotonic() + 0.5
    one = Job(job().permit, lambda event: None, 60.0, soon, step_time)
    queue.put(one)
    step_time.measured(2.0)
    with pytest.raises(DeadlineExceeded, match=r"0\.\d{3} s are left and one forward takes 2\.000 s"):
        queue.put(Job(job().permit, lambda event: None, 60.0, soon, step_time))
    queue.put(Job(job().permit, lambda event: None, 60.0, soon + 5, step_time))
    assert len(queue) == 2


def test_waiting_job_that_can_end_in_time_no_more_leaves_first() -> None:
    """Nobody waits for its turn in vain: it leaves the queue to be told."""
    step_time = StepTime()
    ahead, late = job(), Job(job().permit, lambda event: None, 60.0, time.monotonic() + 1.0, step_time)
    queue = queued([ahead, late])
    step_time.measured(5.0)
    assert queue.turn(wait=False) == (late, True)


def test_step_time_is_the_usual_one_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step that stood still changes nothing; after half a minute without a step it says nothing."""
    step_time, now = StepTime(), time.monotonic()
    assert step_time.seconds is None
    for seconds in (1.0, 1.0, 600.0, 2.0):
        step_time.measured(seconds)
    assert step_time.seconds == 1.0
    for _ in range(2):
        step_time.measured(4.0)
    assert step_time.seconds == 4.0
    monkeypatch.setattr(time, "monotonic", lambda: now + 31.0)
    assert step_time.seconds is None
    step_time.measured(3.0)
    assert step_time.seconds == 4.0


def test_nudge_outlives_a_turn_that_does_not_wait() -> None:
    """What it is about has not been looked to yet: the next wait ends at once."""
    queue = queued([])
    queue.nudge()
    assert queue.turn(wait=False) is None
    waiting = threading.Thread(target=queue.turn, kwargs={"wait": True}, daemon=True)
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()

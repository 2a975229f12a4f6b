"""Many jobs on one state that is not kept: one reads its prefix, the others wait for it, and none waits in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.events import Accepted, Completed
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.steps import Served
from letterwise_service.engine.store.prefixes import PrefixStore
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import Cancelled, DeadlineExceeded, LetterwiseError
from letterwise_service.method.request import DecisionRequest
from tests.engine.conftest import Heard
from tests.engine.decisions import LATE, WHICH, decide, make, service, unpinned
from tests.engine.engines import BAD, STATE, Gate, submit

LONG = "A parcel of books arrived two days late. " * 25
TIERS = {"llama": "exact", "qwen3_5": "checkpoint", "gemma3_text": "checkpoint"}
ENDINGS = {"cancelled": Cancelled, "late": DeadlineExceeded, "broken": LetterwiseError}
ReaderOf = Callable[[str], Reader]


def start(served: Served, jobs: int, **settings: Any) -> list[tuple[Job, Heard]]:
    made = [make(LATE, state=LONG, **settings) for _ in range(jobs)]
    for job, _ in made:
        job.start(served)
    return made


def run(jobs: list[Job]) -> None:
    """Turns of one step until all have ended."""
    while jobs:
        jobs = [job for job in jobs if not job.advance()]


def computed(heard: Heard) -> int:
    return heard.completed().diagnostics.computed_tokens


@pytest.mark.parametrize("architecture", TIERS)
def test_one_of_many_reads_the_prefix(reader_of: ReaderOf, architecture: str) -> None:
    """Five jobs at once: the first computes all, the others their tails, and all have the same answers."""
    served = service(reader_of(architecture), tier=TIERS[architecture])
    made = start(served, 5)
    run([job for job, _ in made])
    prefix, tail = len(made[0][0].permit.prefix), sum(map(len, made[0][0].permit.tails.values()))
    assert [computed(heard) for _, heard in made] == [prefix + tail, *[tail] * 4]
    assert [heard.completed().diagnostics.prefix.reused_tokens for _, heard in made] == [0, *[prefix] * 4]
    assert all(heard.completed().diagnostics.prefix.stored for _, heard in made)
    info = served.store.describe()
    assert (info.hits, info.misses) == (4, 1)
    assert all(heard.outcomes() == made[0][1].outcomes() for _, heard in made)
    assert unpinned(served)


def test_waiting_turns_run_nothing(served: Served, forwards: list[int]) -> None:
    """A turn of a job that waits costs no forward and no noticeable time."""
    (reader, _), (waiting, heard) = start(served, 2)
    assert not reader.advance()
    ran, began = len(forwards), time.process_time()
    for _ in range(100):
        assert not waiting.advance()
    assert time.process_time() - began < 0.25
    assert len(forwards) == ran
    assert [type(event) for event in heard.events] == [Accepted]
    run([reader, waiting])
    heard.completed()


@pytest.mark.parametrize("architecture", TIERS)
@pytest.mark.parametrize("ending", ["cancelled", "late", "broken"])
def test_reader_that_ends_hands_over(reader_of: ReaderOf, architecture: str, ending: str) -> None:
    """The next in turn goes on from what was kept; the others wait for that one, and none fails with the first."""
    served = service(reader_of(architecture), tier=TIERS[architecture])
    made = start(served, 4)
    (first, failed), *others = made
    assert not first.advance()
    assert not others[0][0].advance()
    end(first, ending)
    assert first.advance()
    assert isinstance(failed.error(), ENDINGS[ending])
    run([job for job, _ in others])
    prefix, tail = len(first.permit.prefix), sum(map(len, first.permit.tails.values()))
    read = 0 if ending == "broken" and TIERS[architecture] == "checkpoint" else 2 * FORWARD_TOKENS
    assert [computed(heard) for _, heard in others] == [prefix - read + tail, tail, tail]
    assert others[0][1].outcomes() == decide(service(reader_of(architecture), tier="off"), LATE, state=LONG)
    assert unpinned(served)


def end(job: Job, ending: str) -> None:
    """Let the job's next turn be its last."""
    if ending == "cancelled":
        job.cancel()
    elif ending == "late":
        job.deadline_seconds = 0.0
    else:
        steps = job._steps

        def broken() -> Any:
            yield from ()
            assert steps is not None
            steps.throw(RuntimeError("out of memory"))

        job._steps = broken()


@pytest.mark.parametrize("ending", ["cancelled", "late"])
def test_waiting_job_can_be_stopped(served: Served, ending: str) -> None:
    """A job that waits ends when its caller leaves or its time is up, and the reader does not notice."""
    (reader, answered), (waiting, stopped) = start(served, 2)
    assert not reader.advance()
    assert not waiting.advance()
    end(waiting, ending)
    assert waiting.advance()
    assert isinstance(stopped.error(), ENDINGS[ending])
    run([reader])
    answered.completed()
    assert unpinned(served)


@pytest.mark.parametrize("tier", ["off", "unsupported"])
def test_nobody_waits_where_nothing_is_kept(served: Served, tier: str) -> None:
    """Without a store each job reads by itself, at once, in turns."""
    made = start(service(served.reader, tier=tier), 3)
    for job, _ in made:
        assert not job.advance()
    assert [heard.events[-1].done_tokens for _, heard in made] == [256] * 3  # type: ignore[union-attr]
    run([job for job, _ in made])
    assert len({computed(heard) for _, heard in made}) == 1
    assert computed(made[0][1]) > len(made[0][0].permit.prefix)


def test_nobody_waits_for_a_prefix_that_is_refused(served: Served) -> None:
    """A state that does not fit is read by each job by itself, and each is told that it was not stored."""
    small = replace(served, store=PrefixStore(tier="exact", salt="test", max_records=8, budget_bytes=1000))
    made = start(small, 3)
    for job, _ in made:
        assert not job.advance()
    assert [heard.events[-1].done_tokens for _, heard in made] == [256] * 3  # type: ignore[union-attr]
    run([job for job, _ in made])
    assert not any(heard.completed().diagnostics.prefix.stored for _, heard in made)
    assert small.store.describe().refused == 3
    assert unpinned(small)


def test_prewarm_is_waited_for(served: Served) -> None:
    """A decision on a state that is being prewarmed reads only its tails, and a prewarm waits in the same way."""
    (warming, warmed), (job, heard), (again, second) = make(state=LONG), make(LATE, state=LONG), make(state=LONG)
    for one in (warming, job, again):
        one.start(served)
    run([warming, job, again])
    assert computed(warmed) == len(warming.permit.prefix)
    assert computed(heard) == sum(map(len, job.permit.tails.values()))
    assert computed(second) == 0
    told = second.completed().diagnostics.prefix
    assert (told.reused_tokens, told.stored, told.tier) == (told.tokens, True, "exact")


def test_200_callers_on_a_new_state_compute_its_prefix_once(engine: Engine) -> None:
    """Prewarms and decisions of several kinds, all waiting before the first begins."""
    gate, state = Gate(engine), "two hundred ask. " * 60
    asked: list[tuple[Any, ...]] = [(LATE,), (WHICH,), (BAD, LATE), ()]
    heard = [Heard() for _ in range(200)]
    for i, one in enumerate(heard):
        questions = asked[i % 4]
        permit = engine.admit(DecisionRequest(state, questions)) if questions else engine.admit_state(state)
        engine.submit(permit, one)
    gate.open()
    told = [one.completed().diagnostics for one in heard]
    prefix = told[0].prefix.tokens
    tails = sum(one.prompt_tokens - prefix * one.passes for one in told if one.passes)
    assert sum(one.computed_tokens for one in told) == prefix + tails
    assert sorted(one.prefix.reused_tokens for one in told) == [0, *[prefix] * 199]
    for kind in range(3):
        assert all(one.outcomes() == heard[kind].outcomes() for one in heard[kind::4])
    assert engine.wait_idle(10)
    assert engine.check_store().tier == "exact"


def test_first_caller_that_leaves_does_not_fail_the_others(engine: Engine) -> None:
    """It is cancelled within the prefix; the eleven behind it are answered, and what it read is not read again."""
    state = "the first one leaves " * 80
    jobs: list[Job] = []

    def leave(event: Any) -> None:
        if getattr(event, "done_tokens", 0) == 512:
            jobs[0].cancel()

    gate, first = Gate(engine), Heard(also=leave)
    permit = engine.admit(DecisionRequest(state, (LATE,)))
    jobs.append(engine.submit(permit, first))
    others = [submit(engine, LATE, state=state)[1] for _ in range(11)]
    gate.open()
    assert isinstance(first.error(), Cancelled)
    told = [one.completed().diagnostics for one in others]
    assert sorted(one.prefix.reused_tokens for one in told) == [512, *[len(permit.prefix)] * 10]
    assert all(one.outcomes() == others[0].outcomes() for one in others)


def test_waiting_for_a_reader_leaves_the_thread_to_it(
    started: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With seven jobs that wait, the engine takes a turn of each for a step of the reader, and no more."""
    engine = started()
    engine.wait_ready(60)
    turns: list[Job] = []
    plain = Job.advance

    def counted(job: Job) -> bool:
        turns.append(job)
        return plain(job)

    gate = Gate(engine)
    heard = [submit(engine, LATE, state=STATE * 10)[1] for _ in range(8)]
    monkeypatch.setattr(Job, "advance", counted)
    gate.open()
    assert all(isinstance(one.end(), Completed) for one in heard)
    steps = -(-heard[0].completed().diagnostics.prefix.tokens // (2 * FORWARD_TOKENS))
    assert len(turns) <= 8 * (steps + 4)

"""The ends of a job that are no answer: cancelled, late, broken; and what it lets go of then."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.events import Answered, Completed, Failed
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.steps import Served
from letterwise_service.engine.store import blocks, snapshots
from letterwise_service.engine.store.prefixes import PrefixStore
from letterwise_service.errors import Cancelled, DeadlineExceeded, LetterwiseError, OutOfMemory, ReadFailed
from letterwise_service.method.request import BATCH, INTERACTIVE, Choice, Option
from tests.engine.conftest import found_reader
from tests.engine.decisions import LATE, LONG_STATE, TOKENS, WHICH, decide, finish, make, service, unpinned
from tests.tiny import byte_tokenizer, tiny_model


def test_cancel_before_the_start_runs_nothing(served: Served, forwards: list[int]) -> None:
    """A job whose caller left while it waited ends as cancelled, with no forward and no other event."""
    job, heard = make(LATE)
    job.cancel()
    job.cancel()
    finish(job, served)
    assert [type(event) for event in heard.events] == [Failed]
    assert isinstance(heard.error(), Cancelled)
    assert forwards == []


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_cancel_in_the_middle_runs_no_forward_more(served: Served, forwards: list[int], steps: int) -> None:
    """In the prefix or among the tails, the next step ends the job and lets its record go."""
    long = Choice("long", "Which? " * 40, (Option("a"), Option("b")))
    job, heard = make(*(replace(long, id=f"q{i}") for i in range(6)))
    job.start(served)
    for _ in range(steps):
        assert not job.advance()
    ran = len(forwards)
    job.cancel()
    assert job.advance()
    assert isinstance(heard.error(), Cancelled)
    assert len(forwards) == ran
    assert unpinned(served)


def test_own_deadline_of_a_job_is_held_against_no_estimate(served: Served) -> None:
    """After a machine that stood still, jobs without a caller's deadline go on."""
    job, heard = make(LATE, WHICH, seconds=60.0)
    for _ in range(40):
        served.step_time.measured(600.0)
    job.step_time = served.step_time
    finish(job, served)
    assert heard.completed()


def test_batch_job_s_deadline_counts_its_own_steps(served: Served) -> None:
    """However long it waits between two of them, where an interactive one's time runs."""
    for service_class, ends in ((BATCH, False), (INTERACTIVE, True)):
        job, heard = make(LATE, WHICH, seconds=60.0)
        job.permit = replace(job.permit, service_class=service_class)
        job.start(served)
        assert not job.advance()
        job.started -= 100.0
        assert job.gone is ends
        finish_rest(job)
        assert (heard.events[-1].__class__ is Completed) is not ends
    job, heard = make(LATE, WHICH, seconds=60.0)
    job.permit = replace(job.permit, service_class=BATCH)
    job.start(served)
    assert not job.advance()
    job._worked_seconds = 61.0
    assert job.advance()
    assert isinstance(heard.error(), DeadlineExceeded)


def finish_rest(job: Job) -> None:
    while not job.advance():
        pass


def test_state_that_is_kept_takes_no_further_turn(served: Served) -> None:
    """A prewarm ends with its last chunk: no deadline and no cancel can take back what was read."""
    job, heard = make(state="short state")
    job.start(served)
    assert job.advance()
    assert heard.completed().diagnostics.prefix.stored


def test_copy_without_memory_ends_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint tier's record cannot be made: the job is told so, and nothing stays pinned or is pinned less."""
    for tier, shelf in (("checkpoint", snapshots), ("exact", blocks)):
        served = service(found_reader("llama"), tier=tier)
        decide(served, LATE)
        grown = LONG_STATE + "And so it goes on and on. " * 20
        with monkeypatch.context() as context:
            context.setattr(shelf, "mx", Refusing(1))
            job, heard = make(LATE, state=grown)
            finish(job, served)
        assert isinstance(heard.error(), OutOfMemory)
        assert unpinned(served)
        served.store.check(idle=True)
        assert decide(served, LATE, state=grown)
        served.store.check(idle=True)


class Refusing:
    """MLX, whose next evaluations are refused for want of memory."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def eval(self, *arrays: Any) -> None:
        if self._left:
            self._left -= 1
            raise RuntimeError("[metal::malloc] Unable to allocate 123 bytes.")
        mx.eval(*arrays)


@pytest.mark.parametrize(("seconds", "caller"), [(0.0, None), (60.0, -1.0)])
def test_deadline_ends_the_job_before_its_next_forward(
    served: Served, forwards: list[int], seconds: float, caller: float | None
) -> None:
    """The job's own deadline and its caller's both end it, with nothing run after."""
    job, heard = make(LATE, seconds=seconds, caller=None if caller is None else time.monotonic() + caller)
    job.start(served)
    time.sleep(0.002)
    assert job.advance()
    assert isinstance(heard.error(), DeadlineExceeded)
    assert forwards == []


def test_deadline_in_the_middle_lets_the_record_go(served: Served) -> None:
    """A deadline that passes among the tails ends the job, keeps the state, and pins nothing."""
    job, heard = make(*(replace(WHICH, id=f"q{i}", instructions="Which? " * 40) for i in range(6)), seconds=30.0)
    job.start(served)
    for _ in range(4):
        assert not job.advance()
    job.deadline_seconds = 0.0
    assert job.advance()
    assert isinstance(heard.error(), DeadlineExceeded)
    assert served.store.describe().records == -(-len(job.permit.prefix) // FORWARD_TOKENS)
    again, heard = make(LATE)
    finish(again, served)
    assert heard.completed().diagnostics.prefix.reused_tokens == len(job.permit.prefix)
    assert unpinned(served)


def test_deadline_runs_from_the_start_and_not_from_the_queue(served: Served) -> None:
    """Time in the queue is reported, and taken from nobody's deadline."""
    job, heard = make(LATE, seconds=20.0)
    job.submitted -= 50.0
    finish(job, served)
    assert heard.completed().diagnostics.queue_seconds >= 50.0


def test_step_that_cannot_end_in_its_callers_time_is_not_begun(served: Served, forwards: list[int]) -> None:
    """Less is left than a step takes: the job ends before its next forward, told both numbers, and pins nothing."""
    job, heard = make(LATE, WHICH, seconds=60.0, caller=time.monotonic() + 30.0)
    job.step_time = served.step_time
    job.start(served)
    assert not job.advance()
    for _ in range(40):
        served.step_time.measured(45.0)
    ran = len(forwards)
    assert job.advance()
    with pytest.raises(DeadlineExceeded, match=r"^29\.\d{3} s are left and one forward takes 4\d\.\d{3} s$"):
        raise heard.error()
    assert len(forwards) == ran
    assert unpinned(served)


def test_steps_are_measured_as_they_are_taken(served: Served) -> None:
    """After a decision the time of a step is known, and no longer than the decision took."""
    assert served.step_time.seconds is None
    job, heard = make(LATE, WHICH)
    finish(job, served)
    assert served.step_time.seconds is not None
    assert 0.0 < served.step_time.seconds < heard.completed().diagnostics.total_seconds


def test_job_has_one_end(served: Served) -> None:
    """Failed when it has ended already, well or not, it tells nothing more."""
    (job, heard), (failed, told) = make(LATE), make(LATE)
    finish(job, served)
    for one in (job, failed, failed):
        one.fail(LetterwiseError("the engine stopped"))
    assert [type(event) for event in heard.events].count(Failed) == 0
    assert [type(event) for event in told.events] == [Failed]


def test_job_that_cannot_leave_well_ends_all_the_same(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in keeping what a cancelled job has read is logged: the job ends as cancelled and pins nothing."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no room to keep it in")

    monkeypatch.setattr(PrefixStore, "leave", fail)
    job, heard = make(LATE)
    job.start(served)
    assert not job.advance()
    job.cancel()
    assert job.advance()
    assert isinstance(heard.error(), Cancelled)
    assert "no room to keep it in" in caplog.text
    assert unpinned(served)


def test_last_answer_completes_the_job_at_once(served: Served) -> None:
    """The step that brings the last answer ends the job: no deadline or cancel comes between."""
    job, heard = make(LATE)
    job.start(served)
    while not any(isinstance(event, Answered) for event in heard.events):
        ended = job.advance()
    assert ended
    assert isinstance(heard.events[-1], Completed)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_listener_that_raises_harms_nothing(
    served: Served, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A listener's fault is logged; the job goes on to its end."""

    def fault(event: Any) -> None:
        raise kind("not the engine's fault")

    job, heard = make(LATE, also=fault)
    finish(job, served)
    assert set(heard.outcomes()) == {"late"}
    assert f"the listener of job {job.number} raised" in caplog.text


def broken_at(kind: str) -> Served:
    """A model whose scores are not finite where a state has a tilde: in the hidden state, or in the head alone."""
    model = tiny_model("qwen3")
    served = service(Reader(model, found_reader("qwen3").manner, found_reader("qwen3")._streams))
    tilde = byte_tokenizer().encode("~")[0]
    if kind == "hidden":
        weight = mx.array(model.model.embed_tokens.weight)
        weight[tilde] = math.nan
        model.model.embed_tokens.weight = weight
    else:
        weight = mx.array(model.lm_head.weight)
        weight[tilde] = math.nan if kind == "head" else math.inf
        model.lm_head.weight = weight
    head = served.reader.manner.head
    trunk = replace(head.trunk, body=model.model, head=model.lm_head, layer=model.lm_head)  # type: ignore[type-var]
    rows = model.lm_head.weight[mx.array(TOKENS.letter_ids)]
    manner = replace(served.reader.manner, head=replace(head, trunk=trunk, rows=rows))
    return replace(served, reader=Reader(model, manner, served.reader._streams))


def test_scores_that_are_no_numbers_fail_the_request(processor_operations: None) -> None:
    """NaN in a state's hidden state is an error and never an answer; other states are answered after it."""
    served = broken_at("hidden")
    clean = decide(served, LATE, state="no sign")
    job, heard = make(LATE, WHICH, state="a ~ sign")
    finish(job, served)
    assert isinstance(heard.error(), ReadFailed)
    assert not any(isinstance(event, Answered) for event in heard.events)
    assert decide(served, LATE, state="no sign") == clean
    assert unpinned(served)


@pytest.mark.parametrize("kind", ["head", "infinite head"])
def test_mass_that_is_no_number_fails_the_request(processor_operations: None, kind: str) -> None:
    """Finite letters beside a vocabulary that sums to no number give no letter mass, so no answer."""
    job, heard = make(LATE)
    finish(job, broken_at(kind))
    assert isinstance(heard.error(), ReadFailed)


def test_unforeseen_failure_ends_the_job_without_its_text(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the engine did not foresee is told in general words; the log has the cause, and nothing stays pinned."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("secret words of a state")

    monkeypatch.setattr(Reader, "_scores", fail)
    job, heard = make(LATE)
    finish(job, served)
    assert type(heard.error()) is LetterwiseError
    assert "secret" not in str(heard.error())
    assert "secret words" in caplog.text
    assert unpinned(served)


def test_prefix_that_cannot_be_kept_is_read_all_the_same(served: Served) -> None:
    """Where the store has no room the decision runs on a prefix of its own, and says that it was not stored."""
    small = PrefixStore(tier="exact", salt="test", max_records=8, budget_bytes=100)
    job, heard = make(LATE)
    finish(job, replace(served, store=small))
    assert not heard.completed().diagnostics.prefix.stored
    assert heard.outcomes() == decide(served, LATE)
    assert small.describe().refused == 1

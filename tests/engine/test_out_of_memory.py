"""Memory that cannot be had: the job that wanted it fails, lets go of everything, and nobody else notices."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from letterwise_service.engine import headroom
from letterwise_service.engine.backend import mx
from letterwise_service.engine.memory import available_bytes
from letterwise_service.engine.reading import views
from letterwise_service.engine.reading.reader import Reader, Work
from letterwise_service.engine.steps import Served
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import OutOfMemory
from letterwise_service.method.request import Noul
from tests.engine.conftest import drain, random_ids
from tests.engine.decisions import LATE, finish, make, unpinned
from tests.engine.engines import STATE, WHICH, Gate, submit

# A tail longer than a forward is read on a copy of the state, and making that copy is what fails here.
GREEDY = Noul("greedy", "Is it late? " * 20)
STATES = ("A parcel arrived late. " * 20, "Nobody was at home. " * 22)
Hunger = Callable[[views.Cache], views.Cache]


def ask_mlx(cache: views.Cache) -> views.Cache:
    """A copy whose first layer has keys of 128 GiB."""
    assert (available_bytes() or 0) < 2**37, "this machine can have them, and would be busy with it for long"
    copied = views.copy(cache)
    _, heads, _, size = copied[0].keys.shape
    copied[0].offset = 2**35 // (heads * size)
    copied[0].keys = copied[0].values = mx.zeros((1, heads, copied[0].offset, size))
    return copied


def ask_the_system(cache: views.Cache) -> views.Cache:
    """The same from the system's own allocator."""
    np.empty(2**46, np.uint8)
    return cache


def ask_metal(cache: views.Cache) -> views.Cache:
    """What MLX raises on Metal, where it looks at what it was given."""
    raise RuntimeError("[metal::malloc] Attempting to allocate 70368744177664 bytes which is greater than the maximum")


ASKED: dict[str, Hunger] = {"mlx": ask_mlx, "system": ask_the_system, "metal": ask_metal}


def hungry(served: Served, copy: Hunger) -> Served:
    reader = served.reader
    return replace(served, reader=Reader(reader.model, replace(reader.manner, copy=copy), reader._streams))


@pytest.mark.parametrize("asked", ASKED)
def test_job_that_cannot_have_its_memory_lets_go_of_everything(
    served: Served, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    """It ends with its own error, pins nothing, leaves MLX no buffers, and its question is answered afterwards."""
    job, heard = make(GREEDY)
    with caplog.at_level(logging.WARNING):
        finish(job, hungry(served, ASKED[asked]))
    assert type(heard.error()) is OutOfMemory
    assert f"no memory for job {job.number}" in caplog.text
    assert mx.get_cache_memory() == 0
    assert unpinned(served)
    again, heard = make(GREEDY)
    finish(again, served)
    assert set(heard.outcomes()) == {"greedy"}
    assert heard.completed().diagnostics.prefix.reused_tokens == len(again.permit.prefix)


def test_error_keeps_nothing_of_the_job_alive(served: Served) -> None:
    """What the failed step had in its hands is free as soon as the job has ended, though its error is still held."""

    class Large:
        """Stands for a large array."""

    held: list[weakref.ref[Large]] = []

    def fail(cache: views.Cache) -> views.Cache:
        large = Large()
        held.append(weakref.ref(large))
        raise MemoryError

    job, heard = make(GREEDY)
    finish(job, hungry(served, fail))
    assert isinstance(heard.error(), OutOfMemory)
    assert [reference() for reference in held] == [None]


@pytest.fixture
def starved(engine: Engine) -> Iterator[Callable[[Hunger, str], None]]:
    """Has an engine's reader make the copies of one state in another way, until the test ends."""
    before = engine._served
    assert before is not None

    def starve(copy: Hunger, state: str) -> None:
        tokens = len(engine.admit_state(state).prefix)
        engine._served = hungry(before, lambda cache: (copy if cache[0].offset == tokens else views.copy)(cache))

    yield starve
    engine._served = before


def test_other_jobs_do_not_notice(engine: Engine, starved: Callable[[Hunger, str], None]) -> None:
    """Of three decisions in flight the greedy one fails; the others have the numbers that they have alone."""
    alone = [submit(engine, LATE, WHICH, state=state)[1].outcomes() for state in STATES]
    starved(ask_mlx, STATES[1])
    gate = Gate(engine)
    first, greedy, last = (submit(engine, LATE, WHICH, state=state)[1] for state in (*STATES, STATE))
    gate.open()
    assert type(greedy.error()) is OutOfMemory
    assert first.outcomes() == alone[0]
    last.completed()
    assert engine.wait_idle(10)
    engine.check_store()
    assert submit(engine, LATE, WHICH, state=STATES[0])[1].outcomes() == alone[0]
    assert engine.alive


@pytest.mark.parametrize(
    "text",
    [
        "[malloc] Unable to allocate 70368744177664 bytes.",
        "[metal::malloc] Resource limit (499000) exceeded.",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackError)",
        "cudaMallocAsync(&data, size, stream) failed: out of memory",
        "std::bad_alloc",
    ],
)
def test_refusals_are_known_by_their_words(text: str) -> None:
    """MLX has one type for all its errors, so its words tell them apart."""
    assert headroom.refused(RuntimeError(text))
    assert not headroom.refused(ValueError(text))


@pytest.mark.parametrize("error", [RuntimeError("[matmul] shapes (1,2) and (3,4)"), KeyError("memory")])
def test_other_errors_are_no_refusals(error: Exception) -> None:
    """A shape that does not fit is nobody's lack of memory."""
    assert not headroom.refused(error)


def test_ordinary_arrays_are_let_pass() -> None:
    """A step of some megabytes is computed without a word, one of no arrays too."""
    headroom.ensure([mx.zeros((1024, 1024))])
    headroom.ensure([])


@pytest.mark.parametrize(
    "tails", [[30, 31, 32, 29], [130]], ids=["four tails over a view", "a long tail on a copy of its own"]
)
def test_what_is_asked_for_covers_what_a_step_takes(
    reader_of: Callable[[str], Reader], monkeypatch: pytest.MonkeyPatch, tails: list[int]
) -> None:
    """Over a long prefix, scores and copies are much more than the rows that come out."""
    reader, prefix = reader_of("wide"), random_ids(8_000)
    cache = drain(reader.prefill(prefix, Work()))
    asked: list[int] = []
    monkeypatch.setattr(headroom, "ensure", lambda arrays=(), scratch_bytes=0: asked.append(scratch_bytes))
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    list(reader.read(prefix, cache, [random_ids(count, seed) for seed, count in enumerate(tails)], Work()))
    took = mx.get_peak_memory() - before
    assert took > 10 * 2**20
    assert max(asked) > 0.9 * took


def test_record_for_which_there_is_no_memory_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes nothing that the machine has not; the decision is answered all the same."""
    monkeypatch.setattr(headroom, "fits", lambda nbytes: False)
    job, heard = make(LATE)
    finish(job, served)
    assert set(heard.outcomes()) == {LATE.id}
    assert not heard.completed().diagnostics.prefix.stored
    told = served.store.describe()
    assert (told.records, told.refused) == (0, 1)
    assert unpinned(served)


PROGRAM = """
import queue, resource, sys, time
from pathlib import Path
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import DecisionRequest, Noul

engine = Engine(EngineConfig(model=sys.argv[1], prefix_store_bytes=2**20))
engine.start()
engine.wait_ready()
permit = engine.admit(DecisionRequest("words " * 100, (Noul("q", "Is it so?"),)))

def end():
    events = queue.SimpleQueue()
    engine.submit(permit, events.put)
    while type(event := events.get()).__name__ not in ("Completed", "Failed"):
        pass
    return type(getattr(event, "error", event)).__name__

print(end())
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
_, hard = before = resource.getrlimit(resource.RLIMIT_AS)
time.sleep(0.3)  # a reading that is older is not relied on
resource.setrlimit(resource.RLIMIT_AS, (taken + 48 * 2**20, hard))
print(end())
print(end())
resource.setrlimit(resource.RLIMIT_AS, before)
print(end(), engine.alive)
engine.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not tell a process what it has")
def test_process_at_its_limit_refuses_and_goes_on(folder: Path) -> None:
    """A real limit of the address space, under which MLX on a processor would crash: refused, and later answered."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (
        0,
        ["Completed", "OutOfMemory", "OutOfMemory", "Completed", "True"],
    ), done.stderr

"""The same question gets the same bits, whatever is asked beside it, before it or at the same time.

Hypothesis draws the surroundings; the answer that an engine gave to the question alone, on a state it had never seen,
is what every other reading of it must equal to the last bit. One engine per model and number of BLAS threads.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from letterwise_service import offline
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.method.answers import Answer, Skipped
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Question, Score
from tests.engine.conftest import WIDE, Heard
from tests.tiny import tiny_folder

STATES = ("", "Late. " * 3, "A parcel of books arrived two days late. " * 9, "東京からの荷物が遅れた 📦")
QUESTIONS: tuple[Question, ...] = (
    Noul("late", "Is it late?"),
    Noul("long", "Is it late? " * 5, yes="It came after the day that was promised.", no="It did not."),
    Choice("which", "Which one?", tuple(Option(f"o{i}", "x" * (i % 5)) for i in range(9))),
    Choice("room", "Which room?", tuple(Option(f"room {i}") for i in range(55))),
    Score("bad", "How bad?", ("low", "middle", "high", {"very": True})),
)
FAMILIES = ("wide", "llama", "qwen3_5", "gemma3_text")


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A real engine on a model of one kind of cache; `wide` is large enough for rows to share forwards."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "wide":
        write_wide(folder)
    else:
        tiny_folder(folder, request.param, max_position_embeddings=8192)
    running = Engine(EngineConfig(model=str(folder)))
    running.start()
    running.wait_ready(120)
    yield running
    running.close()


def write_wide(folder: Path) -> None:
    """A folder of the wide model, with the byte tokenizer."""
    from mlx.utils import tree_flatten

    from letterwise_service.engine.backend import mx
    from tests.engine.conftest import wide_model

    tiny_folder(folder, "llama", **WIDE)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(wide_model().parameters())))


_alone: dict[tuple[str, str, str, int], Answer | Skipped] = {}


def alone(engine: Engine, state: str, question: Question, samples: int) -> Answer | Skipped:
    """The answer to one question on a cold state with nothing else going on; remembered."""
    key = (engine.info.model, state, question.id, samples)
    if key not in _alone:
        assert engine.wait_idle(60)
        forget(engine)
        _alone[key] = offline.decide(engine, DecisionRequest(state, (question,), samples)).outcomes[0]
    return _alone[key]


def forget(engine: Engine) -> None:
    """Empty the store of an idle engine: the next state is cold."""
    assert engine._served is not None
    engine._served.store.clear()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_answers_do_not_depend_on_surroundings(engine: Engine, data: st.DataObject) -> None:
    """Order, other questions, other decisions in flight, cold, kept, prewarmed: the bits are the same."""
    state, samples = data.draw(st.sampled_from(STATES)), data.draw(st.sampled_from([1, 1, 3]))
    questions = tuple(data.draw(st.permutations(QUESTIONS)))[: data.draw(st.integers(1, len(QUESTIONS)))]
    expected = [alone(engine, state, question, samples) for question in questions]
    if data.draw(st.booleans(), label="cold"):
        forget(engine)
    others = [other(engine, data) for _ in range(data.draw(st.integers(0, 3), label="others"))]
    if data.draw(st.booleans(), label="prewarmed"):
        others.append(Heard())
        engine.submit(engine.admit_state(state), others[-1])
    found = offline.decide(engine, DecisionRequest(state, questions, samples)).outcomes
    assert list(found) == expected
    for heard in others:
        heard.completed()


def other(engine: Engine, data: st.DataObject) -> Heard:
    """Another decision, on the same state or another, going on beside."""
    heard = Heard()
    questions = tuple(data.draw(st.lists(st.sampled_from(QUESTIONS), min_size=1, unique_by=lambda q: q.id)))
    engine.submit(engine.admit(DecisionRequest(data.draw(st.sampled_from(STATES)), questions)), heard)
    return heard


_TWO_THREADS = """
import sys
from letterwise_service import offline
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import DecisionRequest, Noul
engine = Engine(EngineConfig(model=sys.argv[1], blas_threads=int(sys.argv[2])))
engine.start(); engine.wait_ready(120)
one, two = Noul("a", "Is it late?"), Noul("b", "Is it early, or is it not?")
state = "A parcel of books arrived two days late. " * 9
first = offline.decide(engine, DecisionRequest(state, (one,))).outcomes
kept = offline.decide(engine, DecisionRequest(state, (two, one))).outcomes
assert kept[1] == first[0], (kept, first)
print(first, kept[0])
engine.close()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_are_the_same_in_another_process(threads: int, tmp_path: Path) -> None:
    """With one number of BLAS threads, two processes give the same bits, cold and kept."""
    write_wide(tmp_path)
    run: list[Any] = [sys.executable, "-c", _TWO_THREADS, str(tmp_path), str(threads)]
    printed = [subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout for _ in range(2)]
    assert printed[0] == printed[1] != ""

"""Engines that cannot serve, that die, and the process that ends around them: nobody waits in vain."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine import thread as thread_module
from letterwise_service.engine.budgets import Permit
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.reader import Reader
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import (
    EngineDown,
    LetterwiseError,
    LoadFailed,
    ModelUnsuitable,
    ReadFailed,
)
from letterwise_service.method.request import DecisionRequest
from tests.engine.conftest import Heard
from tests.engine.engines import LATE, STATE, WHICH, Gate, submit
from tests.tiny import CHATML, tiny_folder


def test_engine_that_is_still_loading_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is ready an engine has no facts and admits nothing."""
    hold = threading.Event()
    plain = Engine._load
    monkeypatch.setattr(Engine, "_load", lambda self: (hold.wait(30), plain(self))[1])
    loading = Engine(EngineConfig(model=str(folder)))
    loading.start()
    try:
        for call in (lambda: loading.info, lambda: loading.wait_ready(0.01), lambda: loading.admit_state("x")):
            with pytest.raises(EngineDown, match="loading"):
                call()
        with pytest.raises(EngineDown):
            loading.describe_store()
    finally:
        hold.set()
        loading.close()


def test_model_that_cannot_be_loaded_fails_the_waiting(started: Callable[..., Engine], tmp_path: Path) -> None:
    """No such model, and a folder of nonsense: LoadFailed with the reason, for all who wait and ask later."""
    (tmp_path / "config.json").write_text("{}")
    died: list[str] = []
    for model in (str(tmp_path / "nowhere"), str(tmp_path)):
        failed = Engine(EngineConfig(model=model))
        failed.on_death(lambda: died.append("died"))
        failed.start()
        with pytest.raises(LoadFailed):
            failed.wait_ready(60)
        with pytest.raises(LoadFailed):
            failed.admit_state("x")
        failed.close()
        assert not failed.alive
    assert died == []


@pytest.mark.parametrize("template", [CHATML + "<think>", "{{ messages[0]['content'] | upper }}"])
def test_model_that_cannot_serve_letters_says_why(
    started: Callable[..., Engine], tmp_path: Path, template: str
) -> None:
    """The engine is up with the problem in its facts, and refuses decisions with that reason."""
    unfit = started(model=str(tiny_folder(tmp_path / "unfit", template=template)))
    info = unfit.wait_ready(60)
    assert info.problem
    with pytest.raises(ModelUnsuitable) as refused:
        submit(unfit)
    assert info.problem in str(refused.value)
    with pytest.raises(EngineDown):
        unfit.describe_store()
    assert unfit.alive


def spoiled(folder: Path, tensor: str, spoil: Callable[[Any], Any]) -> Path:
    """A model folder with one tensor changed."""
    from letterwise_service.engine.backend import mx

    tiny_folder(folder, max_position_embeddings=2048)
    path = str(folder / "model.safetensors")
    weights = dict(mx.load(path))
    weights[tensor] = spoil(mx.array(weights[tensor]))
    mx.eval(weights)
    (folder / "model.safetensors").unlink()
    mx.save_safetensors(path, weights)
    return folder


def test_model_of_no_numbers_serves_nothing(started: Callable[..., Engine], tmp_path: Path) -> None:
    """Weights that are NaN make a model with a problem, not one that answers."""
    broken = started(model=str(spoiled(tmp_path / "nan", "model.norm.weight", lambda w: w * float("nan"))))
    assert "no way of reading" in str(broken.wait_ready(60).problem)
    with pytest.raises(ModelUnsuitable):
        submit(broken)


def test_state_that_meets_a_bad_weight_fails_alone(started: Callable[..., Engine], tmp_path: Path) -> None:
    """One embedding that is NaN, which the start did not meet: the decision that meets it fails, with no answer."""

    def spoil(weight: Any) -> Any:
        weight[93] = float("nan")  # "~" in the byte tokenizer
        return weight

    broken = started(model=str(spoiled(tmp_path / "tilde", "model.embed_tokens.weight", spoil)))
    broken.wait_ready(60)
    gate = Gate(broken)
    _, bad = submit(broken, LATE, WHICH, state="a ~ sign")
    gate.open()
    assert isinstance(bad.error(), ReadFailed)
    assert not any(type(event).__name__ == "Answered" for event in bad.events)
    assert broken.alive


class Fatal(BaseException):
    """What no `except Exception` holds."""


def kill(*_: Any, **__: Any) -> Any:
    raise Fatal("no more")


@pytest.mark.parametrize("stage", ["load", "start", "forward", "prefix", "turn"])
def test_death_of_the_thread_leaves_nobody_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Wherever the thread dies, waiting, running and later callers are all told, and the callbacks run."""
    dying = Engine(EngineConfig(model=str(folder)))
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()

    def raising() -> None:
        calls.put("raised")
        raise RuntimeError("a callback's fault")

    dying.on_death(raising)
    dying.on_death(lambda: calls.put("told"))
    if stage == "load":
        monkeypatch.setattr(Engine, "_load", kill)
        dying.start()
        with pytest.raises(LoadFailed):
            dying.wait_ready(30)
    else:
        dying.start()
        dying.wait_ready(60)
        gate = Gate(dying)
        flights = [submit(dying, WHICH)[1] for _ in range(10)]
        target, name = {
            "start": (Job, "start"),
            "forward": (Reader, "read"),
            "prefix": (Reader, "extend"),
            "turn": (type(dying._queue), "turn"),
        }[stage]
        monkeypatch.setattr(target, name, kill)
        gate.open()
        for heard in [*flights, gate.heard]:
            assert isinstance(heard.error(), EngineDown)
    assert [calls.get(timeout=10), calls.get(timeout=10)] == ["raised", "told"]
    dying._thread.join(10)
    assert not dying.alive
    with pytest.raises(LetterwiseError):
        dying.admit_state("x")
    with pytest.raises(EngineDown):
        dying.submit(Permit(None, (1,), {}, 0, 1, 0), Heard())
    dying.close()


def test_listener_that_raises_ends_nothing(engine: Engine) -> None:
    """Even what no `except Exception` holds, raised by a listener, is its own trouble alone."""
    for fault in (ValueError, SystemExit, Fatal):

        def raising(event: Any, fault: type[BaseException] = fault) -> None:
            raise fault("a listener's")

        heard = Heard(also=raising)
        engine.submit(engine.admit(DecisionRequest(STATE, (LATE,))), heard)
        assert set(heard.outcomes()) == {"late"}
    assert engine.alive
    submit(engine)[1].completed()


ENDS = {
    "closed while it worked": "busy(); engine.close()",
    "left idle": "engine.wait_ready()",
    "left at work": "busy(); sys.exit(0)",
    "left while loading": "time.sleep(0.8)",
}
PROGRAM = """
import sys, threading, time
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import Choice, DecisionRequest, Option

engine = Engine(EngineConfig(model=sys.argv[1]))
engine.start()

def busy():
    engine.wait_ready()
    questions = tuple(Choice(f"q{i}", "Which?", (Option("a"), Option("b"))) for i in range(50))
    permit = engine.admit(DecisionRequest("words " * 100, questions))
    for _ in range(20):
        engine.submit(permit, lambda event: None)
    time.sleep(0.1)

"""


def test_process_exits_cleanly_however_it_is_left(folder: Path) -> None:
    """Closed or not, idle, loading or in the middle of a forward: exit code 0 and nothing on standard error."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", PROGRAM + end, str(folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, end in ENDS.items()
    }
    ends = {}
    for name, process in running.items():
        _, errors = process.communicate(timeout=120)
        ends[name] = (process.returncode, errors)
    assert ends == dict.fromkeys(running, (0, ""))


def test_close_waits_for_the_thread_below_pythons(folder: Path) -> None:
    """MLX lets go of Python objects when the system's thread ends; `close` returns after that."""
    closing = Engine(EngineConfig(model=str(folder)))
    closing.start()
    closing.wait_ready(60)
    assert thread_module._exists(closing._thread)
    closing.close()
    assert not thread_module._exists(closing._thread)

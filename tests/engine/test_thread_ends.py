"""Engines that cannot serve, that die, and the process that ends around them: nobody waits in vain."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine import thread as thread_module
from letterwise_service.engine.budgets import Permit
from letterwise_service.engine.chat.lane import ChatLane
from letterwise_service.engine.events import ChatFinished, Completed, Failed
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.lineup import JobQueue
from letterwise_service.engine.reading.reader import Reader
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import (
    EngineDown,
    LetterwiseError,
    LoadFailed,
    ModelUnsuitable,
    ReadFailed,
)
from letterwise_service.method.chat import ChatMessage, ChatRequest
from letterwise_service.method.request import BATCH, DecisionRequest
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


def once(original: Any) -> Any:
    """A generator function that gives its first value and then kills."""

    def broken(*arguments: Any, **settings: Any) -> Iterator[Any]:
        yield next(original(*arguments, **settings))
        kill()

    return broken


def patched(target: Any, name: str, broken: Callable[[Any], Any] = lambda original: kill) -> Stage:
    return lambda monkeypatch, engine: monkeypatch.setattr(target, name, broken(getattr(target, name)))


def in_an_errand(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    engine._errands.add(kill)


Stage = Callable[[pytest.MonkeyPatch, Engine], None]
STAGES: dict[str, Stage] = {
    "a turn": patched(JobQueue, "turn"),
    "an errand": in_an_errand,
    "leaving the queue": patched(Job, "start"),
    "before the prefix": patched(Reader, "extend"),
    "in the prefix": patched(Reader, "extend", once),
    "before the tails": patched(Reader, "read"),
    "between tails": patched(Reader, "read", once),
    "a job's end": patched(JobQueue, "remove"),
    "a step of chat": patched(ChatLane, "step"),
    "a token of chat": patched(ChatLane, "_take"),
}


def watched(dying: Engine) -> queue.SimpleQueue[str]:
    """The callbacks on the engine's death as they are called; the first raises."""
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()

    def raising() -> None:
        calls.put("raised")
        raise RuntimeError("a callback's fault")

    dying.on_death(raising)
    dying.on_death(lambda: calls.put("told"))
    return calls


def check_dead(dying: Engine, calls: queue.SimpleQueue[str]) -> None:
    """The callbacks have run, once; the thread is gone; whoever comes now is refused."""
    assert [calls.get(timeout=10), calls.get(timeout=10)] == ["raised", "told"]
    dying._thread.join(10)
    assert not dying._thread.is_alive()
    assert calls.empty()
    assert not dying.alive
    assert len(dying._queue) == 0
    for late in (
        lambda: dying.admit_state("x"),
        lambda: dying.submit(Permit(None, (1,), {}, 0, 1, 0), Heard()),
        dying.check_store,
    ):
        with pytest.raises(LetterwiseError):
            late()
    dying.close()


def chat(engine: Engine, ends: list[Any]) -> None:
    """One chat, which adds its last event to `ends`."""
    request = ChatRequest((ChatMessage("user", "Where is it?"),), max_tokens=200)
    listener: Any = lambda event: isinstance(event, ChatFinished | Failed) and ends.append(event)  # noqa: E731
    engine.submit_chat(engine.admit_chat(request), listener)


@pytest.mark.parametrize("stage", STAGES)
def test_death_of_the_thread_leaves_nobody_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Wherever the thread dies, every caller, waiting or running, has exactly one end, and later ones are refused."""
    dying = Engine(EngineConfig(model=str(folder)))
    calls = watched(dying)
    dying.start()
    dying.wait_ready(60)
    gate, chats = Gate(dying), list[Any]()
    flights = [submit(dying, WHICH)[1] for _ in range(10)]
    flights += [submit(dying, service_class=BATCH)[1], gate.heard]
    for _ in range(3):
        chat(dying, chats)
    STAGES[stage](monkeypatch, dying)
    errand = dying._errands.add(lambda: None)
    gate.open()
    check_dead(dying, calls)
    ends = [[event for event in heard.events if isinstance(event, Completed | Failed)] for heard in flights]
    assert [len(each) for each in ends] == [1] * 12
    failures = [event.error for (event,) in ends if isinstance(event, Failed)]
    assert all(type(error) is EngineDown for error in failures)
    assert len(failures) >= 11
    assert len(chats) == 3
    assert all(isinstance(event, Failed) and type(event.error) is EngineDown for event in chats)
    assert errand.done()


def test_death_of_an_idle_thread_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody waiting, those who are told of it are told, and the next caller is refused."""
    dying = Engine(EngineConfig(model=str(folder)))
    calls = watched(dying)
    dying.start()
    dying.wait_ready(60)
    submit(dying)[1].completed()
    assert dying.wait_idle(10)
    errand = dying._errands.add(kill)
    dying._queue.nudge()
    with pytest.raises(EngineDown):
        errand.result(10)
    check_dead(dying, calls)


def test_death_while_loading_leaves_nobody_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the model is told, and a job that was put in the queue before has its end."""
    monkeypatch.setattr(Engine, "_load", kill)
    dying, heard = Engine(EngineConfig(model=str(folder))), Heard()
    calls = watched(dying)
    dying.submit(Permit(None, (1,), {}, 0, 1, 0), heard)
    dying.start()
    with pytest.raises(LoadFailed):
        dying.wait_ready(30)
    assert isinstance(heard.error(), EngineDown)
    check_dead(dying, calls)


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

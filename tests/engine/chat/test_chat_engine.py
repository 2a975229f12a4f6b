"""Chats and the engine's own life: admission, refusals, drain, close and death, with nobody left waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine import thread as thread_module
from letterwise_service.engine.chat.lane import ChatLane
from letterwise_service.engine.events import ChatText
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    EngineDown,
    InvalidRequest,
    LetterwiseError,
    ModelUnsuitable,
    QueueFull,
    TooLong,
    Unsupported,
)
from letterwise_service.method.request import Adapter
from tests.engine.chat.chats import LONG, ChatHeard, chat, permit, request
from tests.engine.engines import WHICH, Gate, submit
from tests.engine.models.adapter_files import adapter_folder, matrices, modules
from tests.tiny import CHATML, tiny_folder, tiny_model


def test_server_without_chat_says_so(started: Callable[..., Engine]) -> None:
    """With no rows there is no chat, and decisions are served as ever."""
    engine = started(chat_rows=0)
    assert not engine.wait_ready(60).chats
    with pytest.raises(Unsupported, match="--chat-rows 0"):
        engine.admit_chat(request())
    with pytest.raises(Unsupported):
        engine.submit_chat(permit(), ChatHeard())
    submit(engine)[1].completed()


@pytest.mark.parametrize("template", [CHATML + "<think>\n", CHATML.replace("m['content']", "m['content'] | upper")])
def test_model_that_cannot_serve_letters_may_chat(
    started: Callable[..., Engine], tmp_path: Path, template: str
) -> None:
    """A template that rules decisions out leaves chat as it is."""
    engine = started(model=str(tiny_folder(tmp_path / "unfit", template=template, max_position_embeddings=512)))
    assert engine.wait_ready(60).problem
    with pytest.raises(ModelUnsuitable):
        submit(engine)
    assert chat(engine, request(max_tokens=3))[1].finished().output_tokens == 3
    with pytest.raises(TooLong):
        engine.admit_chat(request(max_tokens=512))


def test_chat_is_refused_at_the_door(engine: Engine) -> None:
    """Too long, wrong in itself, an adapter that is not there: nothing of it waits for a place."""
    with pytest.raises(TooLong) as refused:
        engine.admit_chat(request("x" * 4000, max_tokens=100))
    assert refused.value.limit_tokens == 4096
    with pytest.raises(InvalidRequest):
        engine.admit_chat(request(max_tokens=5000))
    with pytest.raises(InvalidRequest) as unknown:
        engine.admit_chat(request(adapter=Adapter("nowhere")))
    assert [v.field for v in unknown.value.violations] == ["adapter.name"]
    assert len(engine._line) == 0


def test_adapters_serve_chats_and_decisions_side_by_side(started: Callable[..., Engine], tmp_path: Path) -> None:
    """Chats with and without an adapter, in one batch beside decisions, say what they say one by one."""
    model = tiny_model("llama")
    folder = adapter_folder(tmp_path / "one", matrices(model, modules(model, "q_proj", "v_proj")))
    engine = started(adapters=(("one", str(folder)),))
    assert engine.wait_ready(60).adapters == ("one",)
    asked = [request(LONG, max_tokens=15, adapter=adapter) for adapter in (None, Adapter("one"), Adapter("one", 0.5))]
    alone = []
    for one in asked:
        alone.append(chat(engine, one)[1])
        alone[-1].finished()
    assert len({heard.text for heard in alone}) == 3
    gate = Gate(engine)
    together = [chat(engine, one)[1] for one in asked]
    _, decision = submit(engine, WHICH)
    gate.open()
    decision.completed()
    for heard, right in zip(together, alone, strict=True):
        heard.finished()
        assert heard.ids == right.ids
        assert heard.started.reused_tokens == 256


def test_full_line_of_an_engine_refuses(started: Callable[..., Engine]) -> None:
    """Past the places and the line, a chat is refused at once, and taken when there is room again."""
    engine = started(chat_rows=1, chat_queue=1)
    engine.wait_ready(60)
    gate = Gate(engine)
    inside = [chat(engine, request(max_tokens=3))[1] for _ in range(2)]
    with pytest.raises(QueueFull):
        chat(engine, request())
    gate.open()
    for heard in inside:
        heard.finished()
    assert engine.wait_idle(10)
    chat(engine, request(max_tokens=2))[1].finished()


def test_deadlines_and_cancels_reach_waiting_chats(engine: Engine) -> None:
    """A chat behind the gate whose caller has gone, or can wait no longer, ends without a step of its own."""
    gate = Gate(engine)
    row, gone = chat(engine, request())
    _, late = chat(engine, request(), deadline_seconds=0.0)
    row.cancel()
    gate.open()
    assert isinstance(gone.error(), Cancelled)
    assert isinstance(late.error(), DeadlineExceeded)
    assert len(gone.events) == len(late.events) == 1
    assert engine.wait_idle(10)


def test_drain_lets_admitted_chats_end(started: Callable[..., Engine]) -> None:
    """New chats are refused; those in the batch and in the line come to their ends, and only then is it idle."""
    engine = started(chat_rows=1)
    engine.wait_ready(60)
    gate = Gate(engine)
    inside = [chat(engine, request(max_tokens=25))[1] for _ in range(3)]
    engine.drain()
    with pytest.raises(Draining):
        chat(engine, request())
    gate.open()
    gate.heard.completed()
    assert not engine.wait_idle(0.001)  # no decision is there any more, and chats are
    for heard in inside:
        heard.finished()
    assert engine.wait_idle(10)
    assert engine.alive


def test_close_ends_every_chat(started: Callable[..., Engine]) -> None:
    """Generating and waiting chats hear that the engine is down; later ones are refused."""
    engine = started(chat_rows=2)
    engine.wait_ready(60)
    begun = threading.Event()
    inside = [chat(engine, request(f"{i}", max_tokens=2000), lambda event: begun.set())[1] for i in range(5)]
    later = engine.admit_chat(request())
    assert begun.wait(30)
    engine.close()
    assert all(isinstance(heard.error(), EngineDown) for heard in inside)
    with pytest.raises(EngineDown):
        engine.submit_chat(later, ChatHeard())
    assert engine.wait_idle(0)
    assert not thread_module._exists(engine._thread)  # gone below Python's, too, a step being on its way or not


class Fatal(BaseException):
    """What no `except Exception` holds."""


def kill(*_: Any, **__: Any) -> Any:
    raise Fatal("no more")


@pytest.mark.parametrize("stage", ["_seat", "_take", "_fail_all"])
def test_death_of_the_thread_ends_every_chat(
    started: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Wherever in a chat's step the thread dies, chats and decisions, inside and waiting, are told."""
    engine = started(chat_rows=2)
    engine.wait_ready(60)
    gate = Gate(engine)
    inside = [chat(engine, request(f"{i}", max_tokens=50))[1] for i in range(4)]
    _, decision = submit(engine, WHICH)
    if stage == "_fail_all":
        monkeypatch.setattr(ChatLane, "_own_log_probabilities", lambda *_: 1 / 0)
    monkeypatch.setattr(ChatLane, stage, kill)
    gate.open()
    for heard in inside:
        assert isinstance(heard.error(), EngineDown)
        assert [type(event).__name__ for event in heard.events].count("Failed") == 1
    assert isinstance(decision.error(), EngineDown)
    with pytest.raises(LetterwiseError):
        chat(engine, request())
    engine._thread.join(10)
    assert not engine.alive


def test_failed_step_leaves_the_engine_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the batch fails its chats; the decision beside it and the next chat are as always."""
    alone = submit(engine, WHICH)[1].outcomes()
    right = chat(engine, request(max_tokens=8))[1]
    right.finished()

    def fail(event: Any) -> None:
        if isinstance(event, ChatText):
            monkeypatch.setattr(ChatLane, "_own_log_probabilities", lambda *_: 1 / 0)

    gate = Gate(engine)
    inside = [chat(engine, request(max_tokens=50), fail)[1] for _ in range(3)]
    _, decision = submit(engine, WHICH)
    gate.open()
    errors = [heard.error() for heard in inside]
    monkeypatch.undo()
    assert {type(error) for error in errors} == {LetterwiseError}
    assert all(isinstance(error.__cause__, ZeroDivisionError) for error in errors)
    assert decision.outcomes() == alone
    again = chat(engine, request(max_tokens=8))[1]
    again.finished()
    assert again.tokens == right.tokens

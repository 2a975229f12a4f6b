"""Chat and decisions on one engine thread: neither is seen in the other's numbers, and they take turns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.events import ChatFinished, ChatStarted, ChatText, Completed, PrefixProgress
from letterwise_service.engine.reading.head import LetterHead
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import Cancelled
from letterwise_service.method.chat import ChatRequest
from letterwise_service.method.request import BATCH, DecisionRequest
from tests.engine.chat.chats import LONG, chat, request
from tests.engine.conftest import Heard
from tests.engine.engines import BAD, LATE, STATE, WHICH, Gate, submit
from tests.tiny import tiny_folder

CHATS = (
    request(LONG, max_tokens=24),
    request("And this?", max_tokens=30, temperature=0.8, top_p=0.9, seed=11),
    request("Hello.", "Yes.", LONG[:150], max_tokens=20, temperature=1.1, seed=12),
)
DECISIONS = (
    DecisionRequest(STATE, (LATE, WHICH, BAD)),
    DecisionRequest(STATE + "And wet. " * 40, (WHICH, LATE)),
    DecisionRequest("x" * 300, (BAD,)),
)


def decide(engine: Engine, asked: DecisionRequest, also: Any = None) -> Heard:
    heard = Heard(also)
    engine.submit(engine.admit(asked), heard)
    return heard


def run(engine: Engine, chats: tuple[ChatRequest, ...], decisions: tuple[DecisionRequest, ...]) -> tuple[Any, Any]:
    """What they tell, all in flight together: chats' texts, tokens and ln probabilities; decisions' outcomes.

    No chat's prompt is kept from before, so that the same rows meet in the batch at the same steps.
    """
    forget_chats(engine)
    gate = Gate(engine)
    talking = [chat(engine, one)[1] for one in chats]
    reading = [decide(engine, one) for one in decisions]
    gate.open()
    told = [(one.finished().reason, one.text, one.tokens) for one in talking]
    return told, [one.outcomes() for one in reading]


def forget(engine: Engine) -> None:
    assert engine._served is not None
    engine._served.store.clear()


def forget_chats(engine: Engine) -> None:
    assert engine._lane is not None
    engine._lane._kept.clear()


def recorded_forwards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which every forward of a decision appends `forward` from now on."""
    order: list[str] = []
    plain = LetterHead.forward

    def forward(self: LetterHead, model: Any, ids: Any, cache: Any) -> Any:
        order.append("forward")
        return plain(self, model, ids, cache)

    monkeypatch.setattr(LetterHead, "forward", forward)
    return order


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_chat_and_decisions_have_the_bits_that_they_have_alone(
    started: Callable[..., Engine], tmp_path: Path, kind: str
) -> None:
    """Greedy and sampled chats beside decisions, cold and kept: not a bit of either is another's doing."""
    engine = started(model=str(tiny_folder(tmp_path / kind, kind, max_position_embeddings=4096)))
    engine.wait_ready(60)
    talked, _ = run(engine, CHATS, ())
    _, decided = run(engine, (), DECISIONS)
    assert len({text for _, text, _ in talked}) == 3
    assert run(engine, CHATS, DECISIONS) == (talked, decided)  # the states are kept
    forget(engine)
    assert run(engine, CHATS, DECISIONS) == (talked, decided)  # and now they are read anew


def test_one_forward_runs_for_each_chat_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a chat generates, between two of its tokens a decision in flight gets one forward and no more."""
    order = recorded_forwards(monkeypatch)
    forget(engine)
    gate = Gate(engine)
    order.clear()
    _, talking = chat(engine, request(max_tokens=60), lambda event: order.append(type(event).__name__))
    reading = [decide(engine, one) for one in DECISIONS]
    gate.open()
    talking.finished()
    for heard in reading:
        heard.completed()
    forwards = order.count("forward")
    assert forwards > 12
    first = order.index("ChatText")
    last = len(order) - order[::-1].index("ChatText")
    beside = order[first : min(last, len(order) - order[::-1].index("forward"))]
    assert beside.count("forward") > 10
    assert all(a != b for a, b in pairwise(beside)), beside


def test_pace_is_one_forward_beside_chat_and_all_lanes_without(engine: Engine) -> None:
    """A prefix comes a chunk a step while somebody chats, and a chunk on each lane a step when nobody does."""

    def steps(during: tuple[ChatRequest, ...]) -> list[int]:
        forget(engine)
        gate = Gate(engine)
        talking = [chat(engine, one)[1] for one in during]
        heard = decide(engine, DecisionRequest("pace " * 120, (LATE,)))
        gate.open()
        heard.completed()
        for one in talking:
            one.finished()
        done = [event.done_tokens for event in heard.events if isinstance(event, PrefixProgress)]
        return [after - before for before, after in pairwise(done)]

    assert set(steps((request(max_tokens=40),))[:-1]) == {128}
    assert set(steps(())[:-1]) == {256}


def test_callers_who_vanished_cost_a_living_one_no_step_of_chat(engine: Engine) -> None:
    """Thirty decisions of callers who are gone end between two tokens; the one who stays is answered in a few."""
    order: list[str] = []
    gate = Gate(engine)
    _, talking = chat(engine, request(max_tokens=60), lambda event: order.append(type(event).__name__))
    vanished = []
    for number in range(30):
        heard = Heard()
        vanished.append((engine.submit(engine.admit(DecisionRequest(f"parcel {number}", (LATE,))), heard), heard))
    for job, _ in vanished:
        job.cancel()
    staying = decide(engine, DecisionRequest("parcel 31", (LATE,)), lambda event: order.append(type(event).__name__))
    gate.open()
    staying.completed()
    assert order[: order.index("Completed")].count("ChatText") <= 5
    assert all(isinstance(heard.error(), Cancelled) for _, heard in vanished)
    talking.finished()


def test_batch_decision_has_a_step_for_a_few_tokens_of_a_chat(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat is interactive: four of its tokens come between two forwards of a batch decision."""
    order = recorded_forwards(monkeypatch)
    forget(engine)
    gate = Gate(engine)
    order.clear()
    _, talking = chat(engine, request(max_tokens=60), lambda event: order.append(type(event).__name__))
    reading = decide(engine, DecisionRequest("batch " * 120, (LATE, WHICH), service_class=BATCH))
    gate.open()
    talking.finished()
    reading.completed()
    beside = order[order.index("ChatText") : len(order) - order[::-1].index("ChatText")]
    tokens = "".join(name[0] for name in beside).split("f")[2:-1]  # its first tokens come after steps without one
    assert len(tokens) > 3
    assert {one.count("C") for one in tokens} == {4}


def test_full_batch_does_not_hold_a_decision_back(started: Callable[..., Engine]) -> None:
    """With every place taken by long chats and more waiting, a decision ends long before any of them."""
    engine = started(chat_rows=2)
    engine.wait_ready(60)
    order: list[str] = []
    gate = Gate(engine)
    talking = [
        chat(engine, request(f"{i}", max_tokens=200), lambda e: order.append(type(e).__name__)) for i in range(4)
    ]
    heard = decide(engine, DecisionRequest(STATE, (LATE, BAD)), lambda e: order.append(type(e).__name__))
    gate.open()
    heard.completed()
    end = order.index(Completed.__name__)
    assert order[:end].count(ChatFinished.__name__) == 0
    assert order[:end].count(ChatText.__name__) < 40
    for row, _ in talking:
        row.cancel()
    assert engine.wait_idle(30)


def test_cancel_reaches_only_its_own(engine: Engine) -> None:
    """A cancelled chat ends no decision and no other chat, and a cancelled decision no chat."""
    (first, second, third), decided = run(engine, CHATS, DECISIONS)
    forget_chats(engine)
    gate = Gate(engine)
    rows = [chat(engine, one) for one in (*CHATS, request("Gone.", max_tokens=60))]
    job, gone = submit(engine, WHICH, state="nobody waits for this " * 20)
    reading = [decide(engine, one) for one in DECISIONS]
    rows[3][0].cancel()
    job.cancel()
    gate.open()
    assert isinstance(gone.error(), Cancelled)
    assert isinstance(rows[3][1].error(), Cancelled)
    assert [one.outcomes() for one in reading] == decided
    assert {heard.finished().reason for _, heard in rows[:3]} == {"length"}
    assert [heard.tokens for _, heard in rows[:3]] == [first[2], second[2], third[2]]


def test_chat_begins_at_once_on_an_idle_engine(engine: Engine) -> None:
    """A chat that comes while the thread waits for work is not left to wait for a decision."""
    assert engine.wait_idle(30)
    for _ in range(3):
        assert chat(engine, request(max_tokens=2))[1].finished().output_tokens == 2


def test_decisions_draw_nothing(engine: Engine) -> None:
    """The engine thread's global random state is the same before and after decisions and chats."""

    def state() -> Any:
        return mx.random.state[0].tolist()

    def on_the_thread(call: Callable[[], Any]) -> Any:
        found = engine._errands.add(call)
        engine._queue.nudge()
        return found.result(30)

    before = on_the_thread(state)
    run(engine, CHATS, DECISIONS)
    assert on_the_thread(state) == before
    on_the_thread(lambda: mx.random.normal((1,)).item())
    assert on_the_thread(state) != before  # what draws would be seen


def test_chat_started_comes_before_its_text(engine: Engine) -> None:
    """The order of a chat's events holds beside decisions, too, and a kept prompt is told."""
    reading = decide(engine, DECISIONS[1])
    _, heard = chat(engine, CHATS[0])
    heard.finished()
    reading.completed()
    kinds = [type(event) for event in heard.events]
    assert kinds[0] is ChatStarted
    assert kinds[-1] is ChatFinished
    assert set(kinds[1:-1]) == {ChatText}
    assert chat(engine, CHATS[0])[1].finished().prompt_tokens == heard.started.prompt_tokens

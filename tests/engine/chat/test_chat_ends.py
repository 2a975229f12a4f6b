"""The chat lane's bounds and ends: cancelled, late, waiting, broken; and what is let go of then."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from letterwise_service.engine import headroom
from letterwise_service.engine.backend import caches
from letterwise_service.engine.chat.warm import try_chat
from letterwise_service.engine.events import ChatFinished, ChatStarted, Failed
from letterwise_service.errors import (
    Cancelled,
    DeadlineExceeded,
    LetterwiseError,
    OutOfMemory,
    QueueFull,
    ReadFailed,
)
from letterwise_service.method.request import Adapter
from tests.engine.chat.chats import LONG, lane, permit, served
from tests.tiny import byte_tokenizer, tiny_model


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_cancelled_chat_leaves_at_once(steps: int) -> None:
    """Waiting, in its prompt or in its message: its next event is the last, its memory is free, others go on."""
    alone = lane().chat("Other.", max_tokens=20)
    made = lane()
    row, heard = made.put(permit(LONG, max_tokens=50))
    made.steps(steps)
    _, other = made.put(permit("Other.", max_tokens=20))
    row.cancel()
    row.cancel()
    told = len(heard.events)
    made.steps(1)
    assert isinstance(heard.error(), Cancelled)
    assert len(heard.events) == told + 1
    assert [one.permit for one in made.lane._rows.values()] == [permit("Other.", max_tokens=20)]
    made.run()
    assert other.ids == alone.ids
    assert made.held_bytes == 0
    assert len(made.line) == 0


@pytest.mark.parametrize("waits", [True, False])
def test_deadline_ends_the_chat(waits: bool) -> None:
    """The caller's time runs while the chat waits and while it generates."""
    made = lane(rows=1)
    if waits:
        made.put(permit(max_tokens=5))
        made.steps(1)
    _, heard = made.put(permit(max_tokens=100_000), seconds=0.05)
    made.run()
    assert isinstance(heard.error(), DeadlineExceeded)
    assert made.held_bytes == 0


def test_places_are_bounded_and_given_in_order() -> None:
    """No more rows generate than there are places; the others begin in the order in which they came."""
    made, order = lane(rows=2), []
    for i in range(5):
        made.put(permit(f"{i}", max_tokens=4), also=lambda event, i=i: order.append((type(event), i)))
    most = 0
    while made.lane.step():
        most = max(most, len(made.lane._rows))
        assert len(made.lane._rows) <= 2
    assert most == 2
    assert [i for kind, i in order if kind is ChatStarted] == [0, 1, 2, 3, 4]
    assert [i for kind, i in order if kind is ChatFinished] == [0, 1, 2, 3, 4]


def test_full_line_refuses_with_a_time() -> None:
    """Past the places and those that may wait, a chat is refused at once; when one has ended there is room."""
    made = lane(rows=1, waiting=2)
    for _ in range(3):
        made.put(permit(max_tokens=3))
    with pytest.raises(QueueFull) as refused:
        made.put(permit())
    assert 1.0 <= refused.value.retry_after_seconds <= 30.0
    while len(made.line) == 3:
        made.lane.step()
    made.put(permit())
    made.run()


def test_memory_bounds_what_generates_together() -> None:
    """Rows wait for their share, counted as the batch holds it: every row as long as the longest may become."""
    size = permit("a", max_tokens=12).tokens
    made = lane(memory_tokens=2 * size)
    rows = [made.put(permit(letter, max_tokens=12)) for letter in "abc"]
    most = 0
    while made.lane.step():
        most = max(most, len(made.lane._rows))
    assert most == 2
    assert all(len(heard.ids) == 12 for _, heard in rows)
    large = made.put(permit("a" * 100, max_tokens=2))  # alone it is over the bound, which admission would not let pass
    _, small = made.put(permit("b", max_tokens=2))
    made.steps(2)
    assert [one.permit for one in made.line._seated] == [large[0].permit]
    made.run()
    assert large[1].finished().output_tokens == small.finished().output_tokens == 2


class Failing:
    """Fails the forwards that it is told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    @contextmanager
    def published(self, rows: Sequence[Adapter | None]) -> Iterator[None]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        yield


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("a shape that does not fit"), LetterwiseError),
        (RuntimeError("[malloc] Unable to allocate 99999 bytes."), OutOfMemory),
    ],
)
def test_failed_step_fails_its_rows_and_no_later_one(error: BaseException, told: type[LetterwiseError]) -> None:
    """Rows in the batch end with what happened; those that waited, and later ones, get a new batch."""
    failing = Failing()
    made = lane(rows=2, published=failing.published)
    right = made.chat("Later.").ids
    inside = [made.put(permit(text, max_tokens=20))[1] for text in ("a", "b")]
    _, waiting = made.put(permit("Later."))
    made.steps(5)
    failing.error = error
    made.steps(1)
    assert inside[0].error() is not inside[1].error()
    for heard in inside:
        assert type(heard.error()) is told
        assert [type(event) for event in heard.events].count(Failed) == 1
    made.run()
    assert waiting.ids == right
    assert made.chat("Later.").ids == right


def test_chat_without_memory_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor, whose allocator does not look, the step is held against what the machine has left."""
    made = lane()
    _, heard = made.put(permit(max_tokens=20))
    made.steps(4)
    monkeypatch.setattr(headroom, "available_bytes", lambda: 0)
    monkeypatch.setattr(headroom, "_last", headroom._Reading())
    made.steps(1)
    assert isinstance(heard.error(), OutOfMemory)
    monkeypatch.undo()
    assert len(made.chat().ids) == 8


def test_row_that_meets_a_bad_weight_fails_alone() -> None:
    """An embedding that is NaN ends the chat that meets it, with no word shown; the row beside it goes on."""
    model = tiny_model("qwen3")
    right = lane(model).chat("Fine.")
    (tilde,) = byte_tokenizer().encode("~", add_special_tokens=False)
    model.model.embed_tokens.weight[tilde] = math.nan
    made = lane(model)
    _, bad = made.put(permit("~", max_tokens=20))
    _, good = made.put(permit("Fine."))
    made.run()
    assert isinstance(bad.error(), ReadFailed)
    assert bad.text == ""
    assert good.ids == right.ids


def test_listener_that_raises_hurts_nobody() -> None:
    """A listener's fault is logged, and every chat goes on."""

    def raising(event: Any) -> None:
        raise ValueError("a listener's")

    made = lane()
    _, one = made.put(permit(), also=raising)
    _, other = made.put(permit())
    made.run()
    assert one.ids == other.ids
    assert len(other.ids) == 8


def test_model_whose_layers_cannot_be_batched_says_so() -> None:
    """What mlx-lm cannot merge into a batch is found when the model is loaded, with its reason."""
    assert try_chat(served(), permit(LONG).ids) is None
    model = tiny_model("llama")
    model.make_cache = lambda: [caches.ChunkedKVCache(256) for _ in model.layers]
    assert "ChunkedKVCache" in str(try_chat(served(model), permit(LONG).ids))
    broken = tiny_model("llama")
    broken.model.norm.weight = broken.model.norm.weight * math.nan
    assert "not finite" in str(try_chat(served(broken), permit(LONG).ids))


def test_batch_is_let_go_of_in_the_end() -> None:
    """A lane that is closed in the middle of its rows holds nothing that is still being computed."""
    made = lane()
    _, heard = made.put(permit(max_tokens=20))
    made.steps(4)
    made.lane.close()
    assert len(heard.ids) > 0

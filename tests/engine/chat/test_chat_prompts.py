"""The prompts of chat while they are read: in turns, as states are read, each row's faults and ends its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from letterwise_service.engine import headroom
from letterwise_service.engine.backend import mx
from letterwise_service.engine.events import ChatStarted, ChatText, Failed
from letterwise_service.engine.reading import views
from letterwise_service.engine.reading.head import pick_head
from letterwise_service.engine.reading.probe import drain
from letterwise_service.engine.reading.reader import Manner, Reader, Work
from letterwise_service.errors import Cancelled, DeadlineExceeded, LetterwiseError, OutOfMemory
from letterwise_service.method.request import Adapter
from tests.engine.chat.chats import LONG, Lane, lane, permit
from tests.engine.conftest import LETTER_IDS, streams

KINDS = ("llama", "gemma3_text", "qwen3_5")
LONGER = LONG * 4 + "And so on. " * 5  # about 1080 tokens: nine chunks


def read(made: Lane) -> list[int]:
    """How much is read of each prompt that is not read whole, the oldest first."""
    return [prompt.read for prompt in sorted(made.lane._prompts._turns, key=lambda prompt: prompt.row.number)]


def kept_bits(made: Lane, text: str) -> list[Any]:
    """What the lane keeps of a prompt's whole chunks."""
    ids = permit(text).ids
    cache, tokens = made.lane._kept.take("", ids)
    assert cache is not None
    assert tokens == (len(ids) - 1) // 128 * 128
    return bits(cache)


def bits(cache: views.Cache) -> list[Any]:
    return [array.tolist() for array in views.arrays(cache)]


def test_short_chat_begins_while_a_long_prompt_is_read() -> None:
    """A place is free, so a short prompt has its first token between the chunks of a long one, and ends before it."""
    made = lane()
    _, long = made.put(permit(LONGER, max_tokens=3))
    made.steps(2)
    _, short = made.put(permit("Short.", max_tokens=3))
    made.steps(3)
    assert [type(event) for event in short.events[:2]] == [ChatStarted, ChatText]
    assert long.events == []
    made.steps(2)
    assert short.finished().output_tokens == 3
    assert long.events == []
    made.run()
    assert long.finished().output_tokens == 3


def test_chunks_of_prompts_alternate() -> None:
    """A step reads one chunk, of the prompt that has waited longest; a later one gets its turn after the others'."""
    made, seen = lane(), []
    for text in (LONGER, "b" + LONGER):
        made.put(permit(text))
    for _ in range(4):
        made.steps(1)
        seen.append(read(made))
    assert seen == [[128, 0], [128, 128], [256, 128], [256, 256]]
    made.put(permit("c" + LONGER))
    made.steps(3)
    assert read(made) == [384, 384, 128]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_read_in_turns_have_the_bits_they_have_alone(kind: str) -> None:
    """What is kept of each, and each first token's probability, to the last bit."""
    texts = [LONG, "b" + LONGER, "c" + LONG * 2]
    alone = [lane(kind) for _ in texts]
    right = [one.chat(text, max_tokens=1) for one, text in zip(alone, texts, strict=True)]
    made = lane(kind)
    heard = [made.put(permit(text, max_tokens=1))[1] for text in texts]
    made.run()
    assert [one.tokens for one in heard] == [one.tokens for one in right]
    for one, text in zip(alone, texts, strict=True):
        assert kept_bits(made, text) == kept_bits(one, text)


def test_prompt_is_read_as_a_state_is(processor_operations: None) -> None:
    """Its chunks have the bits that the reader of states gives them, with the processor's own attention."""
    made = lane(lanes=streams())
    made.chat(LONG)
    ids, model = permit(LONG).ids[:256], made.lane._served.model
    reader = Reader(model, Manner(pick_head(model, LETTER_IDS, mx.array([ids]))), streams())
    reader.pace.forwards = 1
    assert bits(drain(reader.prefill(ids, Work()))) == kept_bits(made, LONG)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_that_is_being_read_is_not_read_twice(kind: str) -> None:
    """Chats that begin alike and come together: the second waits for what the first leaves kept, to the same bits."""
    alone = [lane(kind).chat(LONGER, max_tokens=1), lane(kind).chat(LONGER + "And now?", max_tokens=1)]
    made = lane(kind)
    heard = [made.put(permit(text, max_tokens=1))[1] for text in (LONGER, LONGER + "And now?")]
    made.steps(4)
    assert read(made) == [512, 0]
    made.run()
    assert [one.started.reused_tokens for one in heard] == [0, (len(permit(LONGER).ids) - 1) // 128 * 128]
    assert [one.tokens for one in heard] == [one.tokens for one in alone]


def test_prompt_does_not_wait_where_it_gains_little() -> None:
    """A short prompt that shares a chunk with a long one reads it itself, also where that chunk is kept already."""
    made = lane()
    for after in ("", "b"):
        made.put(permit(LONG[:150] + after + LONGER, max_tokens=1))
        made.steps(1)
        _, short = made.put(permit(LONG[:150] + after + "Short.", max_tokens=1))
        made.steps(5)
        assert short.finished().output_tokens == 1
        assert len(made.lane._prompts) == 1
        made.run()


def test_prompt_that_waits_for_one_that_ends_reads_on_itself() -> None:
    """With the other gone there is nothing to wait for."""
    made, right = lane(), lane().chat(LONGER).ids
    gone, _ = made.put(permit(LONGER))
    _, heard = made.put(permit(LONGER))
    made.steps(3)
    assert read(made) == [384, 0]
    gone.cancel()
    made.steps(1)
    assert read(made) == [128]
    made.run()
    assert heard.ids == right


def test_prompts_that_are_read_count_in_the_memory() -> None:
    """A prompt waits for its share while another is read, before either generates."""
    made = lane(memory_tokens=permit(LONGER).tokens * 2 - 1)
    made.put(permit(LONGER))
    _, heard = made.put(permit("b" + LONGER[1:]))
    made.steps(3)
    assert read(made) == [384]
    made.run()
    assert len(heard.ids) == 8


@pytest.mark.parametrize("late", [False, True])
def test_prompt_ends_between_two_chunks(late: bool) -> None:
    """Cancelled or late while it is read: its cache goes at once, the prompt beside it is read on."""
    made = lane()
    right = lane().chat(LONG).ids
    row, heard = made.put(permit("b" + LONGER), seconds=60)
    _, other = made.put(permit(LONG))
    made.steps(3)
    if late:
        row.caller_deadline = 0.0
    else:
        row.cancel()
    made.steps(1)
    assert type(heard.error()) is (DeadlineExceeded if late else Cancelled)
    assert len(heard.events) == 1
    assert read(made) == [256]
    made.run()
    assert other.ids == right
    assert made.held_bytes == 0


class Refusing:
    """Fails the forwards of one adapter's rows."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @contextmanager
    def published(self, rows: Sequence[Adapter | None]) -> Iterator[None]:
        if Adapter("bad") in rows:
            raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("a shape that does not fit"), LetterwiseError), (MemoryError(), OutOfMemory)],
)
def test_prompt_that_fails_fails_alone(error: Exception, told: type[LetterwiseError]) -> None:
    """A row that generates and one whose prompt is read go on, in the same batch, beside a prompt that fails."""
    right = [lane().chat("a", max_tokens=20).ids, lane().chat(LONG).ids]
    made = lane(published=Refusing(error).published)
    _, generating = made.put(permit("a", max_tokens=20))
    made.steps(3)
    batch = made.lane._generator
    _, reading = made.put(permit(LONG))
    made.steps(1)
    _, bad = made.put(permit("b" + LONG, adapter=Adapter("bad")))
    made.run()
    assert type(bad.error()) is told
    assert [type(event) for event in bad.events] == [Failed]
    assert [generating.ids, reading.ids] == right
    assert made.lane._generator is batch


def test_prompt_without_memory_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is held against what the machine has left, and its row alone ends when that is too little."""
    made = lane()
    _, heard = made.put(permit(LONGER))
    made.steps(2)
    monkeypatch.setattr(headroom, "available_bytes", lambda: 0)
    monkeypatch.setattr(headroom, "_last", headroom._Reading())
    made.steps(1)
    monkeypatch.undo()
    assert isinstance(heard.error(), OutOfMemory)
    assert made.held_bytes == 0
    assert len(made.chat().ids) == 8


def test_prompt_whose_last_token_alone_is_not_kept_enters_at_once() -> None:
    """With nothing to read before the last token no forward is run for it, and the message is the same."""
    made = lane()
    text = "x" * (257 - len(permit("").ids))
    assert len(permit(text).ids) == 257
    first = made.chat(text)
    again = made.chat(text)
    assert (first.started.reused_tokens, again.started.reused_tokens) == (0, 256)
    assert again.tokens == first.tokens

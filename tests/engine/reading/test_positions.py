"""A multimodal model's notes of where the last call lay: a reader's calls find their own, and leave chat's in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.backend import mx, nn
from letterwise_service.engine.reading.head import LOGITS, LetterHead
from letterwise_service.engine.reading.positions import Positions
from letterwise_service.engine.reading.reader import Reader
from tests.engine.conftest import found_reader, random_ids, read, streams
from tests.tiny import tiny_model

PREFIX, TAILS = random_ids(300), [random_ids(20), random_ids(9)]


class Noting(nn.Module):  # type: ignore[misc]  # no types are published
    """A llama that starts at the position which it noted in the call before, as mlx-vlm's language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.language_model = tiny_model("llama")
        self.language_model._rope_deltas = None
        self.language_model._position_ids = None

    @property
    def layers(self) -> Any:
        return self.language_model.layers

    def __call__(self, ids: Any, cache: Any = None) -> Any:
        inner = self.language_model
        first = 0 if inner._rope_deltas is None else int(inner._rope_deltas.item())
        inner._rope_deltas = mx.array(0)
        inner._position_ids = mx.arange(ids.shape[1])
        return inner((ids + first) % 256, cache=cache)


def reader(model: Any) -> Reader:
    manner = found_reader("llama").manner
    return Reader(model, replace(manner, head=LetterHead(LOGITS, manner.head.letter_ids)), streams())


@pytest.mark.parametrize("chats", [mx.array(3), mx.array(70), None])
def test_reader_leaves_chats_positions_and_never_finds_them(processor_operations: None, chats: Any) -> None:
    """Whatever chat's last call has noted, the scores are the same, and its note is there afterwards."""
    right = read(reader(Noting()), PREFIX, TAILS)
    model = Noting()
    own = reader(model)
    inner = model.language_model
    inner._rope_deltas = chats
    inner._position_ids = "chat's own"
    assert read(own, PREFIX, TAILS) == right
    assert inner._rope_deltas is chats
    assert inner._position_ids == "chat's own"


def test_positions_come_back_though_a_call_fails() -> None:
    """A call that raises leaves what was there before."""
    model = Noting()
    positions = Positions(model)
    model.language_model._rope_deltas = mx.array(5)

    def call() -> None:
        with positions.own():
            assert model.language_model._rope_deltas is None
            model.language_model._rope_deltas = mx.array(9)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call()
    assert model.language_model._rope_deltas.item() == 5
    with positions.own():  # the reader's next call goes on from its last
        assert model.language_model._rope_deltas.item() == 9


def test_models_without_positions_have_none_to_keep() -> None:
    """Nothing is noted on a model that keeps nothing."""
    assert Positions(tiny_model("llama"))._places == []

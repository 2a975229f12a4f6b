"""What the probe finds of a model by reading with it, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from letterwise_service.engine import headroom
from letterwise_service.engine.backend import caches
from letterwise_service.engine.reading import probe, views
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.probe import drain, find_manner
from letterwise_service.engine.reading.reader import Manner
from letterwise_service.errors import ModelUnsuitable, OutOfMemory
from tests.engine.conftest import LETTER_IDS, random_ids, streams, wide_model
from tests.tiny import tiny_model


def found(model: Any, ids: Sequence[int] | None = None) -> Manner:
    return find_manner(model, LETTER_IDS, random_ids(100) if ids is None else ids, streams())


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text", "qwen3_5"])
def test_probe_finds_views_and_copies(processor_operations: None, architecture: str) -> None:
    """Plain attention, a rotating window and recurrent layers are all read through views and copied."""
    manner = found(tiny_model(architecture))
    assert (manner.share, manner.copy, manner.head.path) == (views.view, views.copy, "rows")


def test_probe_finds_that_rows_may_share_a_forward(processor_operations: None) -> None:
    """On a model of some size a row's bits are its own, and forwards take many rows."""
    assert found(wide_model()).rows_limit == FORWARD_TOKENS


def test_probe_finds_rows_that_depend_on_their_companions(processor_operations: None) -> None:
    """A model whose rows look at one another gets one row to a forward."""
    model = wide_model()
    layer = model.layers[0].mlp
    kind = type(layer)

    class Leaning(kind):  # type: ignore[misc,valid-type]
        """A gated layer that adds a little of the batch's mean, as a capacity-bound router does."""

        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + 1e-5 * x.mean(axis=0, keepdims=True) * (x.shape[0] > 1)

    layer.__class__ = Leaning
    assert found(model).rows_limit == 1


def test_probe_works_on_a_prompt_of_any_length(processor_operations: None) -> None:
    """A tokenizer of whole words makes the probe's prompt short; it must be enough."""
    for count in (2, 10, 300):
        assert found(wide_model(), random_ids(count)).share is views.view


class Odd(caches.KVCache):  # type: ignore[misc]
    """An attention cache of a class that nobody has heard of, which can be neither copied nor merged."""

    def __copy__(self) -> Any:
        raise NotImplementedError("no copy")

    @classmethod
    def merge(cls, rows: Any) -> Any:
        raise NotImplementedError("no merge")


class Wrong(Odd):
    """A cache that is copied without complaint, and whose copies lose the first half of every key."""

    def __copy__(self) -> Any:
        return Half()


class Half(caches.KVCache):  # type: ignore[misc]
    """What `Wrong` gives for a copy of itself."""

    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        keys, values = super().update_and_fetch(keys, values)
        return keys * 0.5, values


@pytest.mark.parametrize("kind", [Odd, Wrong])
def test_probe_computes_again_where_nothing_else_is_right(processor_operations: None, kind: Any) -> None:
    """Ways that fail or give other scores are passed over, down to a prefix computed for each tail."""
    model = tiny_model("llama")
    model.make_cache = lambda: [kind() for _ in model.layers]
    manner = found(model)
    assert (manner.share, manner.copy) == (None, None)


def test_probe_refuses_a_model_that_gives_no_numbers(processor_operations: None) -> None:
    """Scores that are NaN agree with nothing: the model is unsuitable, and no answer can come of it."""
    model = tiny_model("llama")
    model.model.norm.weight = model.model.norm.weight * math.nan
    with pytest.raises(ModelUnsuitable, match="no way of reading"):
        found(model)


def test_probe_refuses_a_model_that_forgets_its_cache(processor_operations: None) -> None:
    """A model whose cached forwards disagree with its full one cannot be read in parts."""
    model = tiny_model("llama")
    body = type(model.model)

    class Forgetful(body):  # type: ignore[misc,valid-type]
        def __call__(self, inputs: Any, cache: Any = None, input_embeddings: Any = None) -> Any:
            return super().__call__(inputs, None, input_embeddings)

    model.model.__class__ = Forgetful
    with pytest.raises(ModelUnsuitable):
        found(model)


def test_probe_notices_a_read_that_writes_into_the_prefix() -> None:
    """A way of reading that changes the prefix's bits is no way, whatever its scores."""
    from letterwise_service.engine.reading.head import LetterHead
    from letterwise_service.engine.reading.reader import Reader

    def spoil(cache: Any, rows: int) -> Any:
        cache[0].keys = cache[0].keys * 1.5
        return views.view(cache, rows)

    model = tiny_model("llama")
    reader = Reader(model, Manner(LetterHead("logits", LETTER_IDS), share=spoil), streams())
    with pytest.raises(RuntimeError, match="changed the prefix"):
        probe._read(reader, random_ids(40), [random_ids(9)])


def test_drain_gives_what_the_generator_returns() -> None:
    """A generator is run to its end."""

    def steps() -> Any:
        yield 1
        yield 2
        return "end"

    assert drain(steps()) == "end"


def test_memory_that_is_not_there_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load ends with it: no other way of reading is taken for its sake, and chat is not given up."""

    def refuse(*asked: object, **also: object) -> None:
        raise OutOfMemory("none is left")

    model = tiny_model("llama")
    monkeypatch.setattr(headroom, "ensure", refuse)
    with pytest.raises(OutOfMemory):
        found(model)

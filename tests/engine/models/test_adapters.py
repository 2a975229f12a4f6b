"""Adapters: a read with one is the fused model's, and one without is the model's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine.backend import caches, mx, nn
from letterwise_service.engine.models.adapted import _thin
from letterwise_service.engine.models.adapters import Adapters
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.reading.head import LOGITS, ROWS, pick_head
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.probe import find_manner, rows_apart
from letterwise_service.engine.reading.reader import Manner, Reader, TailScores
from letterwise_service.method.request import Adapter
from tests.engine.conftest import LETTER_IDS, read, streams, wide_model
from tests.engine.models.adapter_files import SCALE, adapter_folder, fuse, matrices, modules
from tests.families import family_model
from tests.tiny import full_scores, tiny_model

MODELS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "llama": (partial(tiny_model, "llama"), ("q_proj", "v_proj", "down_proj")),
    "qwen3": (partial(tiny_model, "qwen3"), ("k_proj", "o_proj", "gate_proj")),
    "qwen3_5": (partial(tiny_model, "qwen3_5"), ("in_proj_qkv", "in_proj_b", "out_proj", "q_proj", "up_proj")),
    "experts": (partial(family_model, "qwen3_moe"), ("v_proj", "mlp.gate", "up_proj", "switch_mlp.down_proj")),
    "flat experts": (partial(family_model, "olmoe"), ("q_proj", "mlp.gate", "gate_proj", "switch_mlp.down_proj")),
}
HEADS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "tied": (partial(tiny_model, "llama"), ("embed_tokens", "q_proj")),
    "untied": (partial(tiny_model, "qwen3"), ("lm_head", "q_proj")),
}


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(1000 * count + seed)
    return [rng.randrange(128) for _ in range(count)]


PREFIX, TAILS = ids(140), [ids(n, seed=1) for n in (5, 30, 33, 129)]


def load(model: Any, folder: Path, name: str = "one", adapters: Adapters | None = None) -> Adapters:
    adapters = adapters or Adapters()
    adapters.load(model, name, folder, float32=True)
    return adapters


def reader(model: Any, adapters: Adapters) -> Reader:
    """A reader of the model with the adapter "one", in the manner that is found with it."""
    with adapters.published((Adapter("one"),)):
        manner = find_manner(model, LETTER_IDS, ids(100), streams())
    return scaled(Reader(model, manner, streams()), adapters, 1.0)


def scaled(one: Reader, adapters: Adapters, scale: float) -> Reader:
    return one.publishing(one.manner, partial(adapters.published, (Adapter("one", scale),)))


def plain_reader(model: Any) -> Reader:
    """A reader of the model with nothing published."""
    return Reader(model, Manner(pick_head(model, LETTER_IDS, mx.array([ids(100)]))), streams())


def assert_judged(found: list[TailScores], judge: Any) -> None:
    """The tails' scores are the judge's, a stock model's in one plain forward each."""
    with kernels.stock():
        for scores, tail in zip(found, TAILS, strict=True):
            right = full_scores(judge, PREFIX + tail, LETTER_IDS)
            size = max(1.0, *map(abs, right))
            assert max(abs(a - b) for a, b in zip(scores.letters, right, strict=True)) <= 1e-5 * size


@pytest.mark.parametrize("name", MODELS)
def test_read_with_an_adapter_is_the_fused_models(processor_operations: None, tmp_path: Path, name: str) -> None:
    """At the adapter's own scale and others, tails score as with weights that have it added, and as in mlx-lm."""
    from mlx_lm.tuner.utils import load_adapters

    make, endings = MODELS[name]
    model = make()
    tensors = matrices(model, modules(model, *endings))
    folder = adapter_folder(tmp_path / "one", tensors)
    adapters = load(model, folder)
    found = reader(model, adapters)
    assert found.manner.head.path == ROWS
    assert_judged(read(found, PREFIX, TAILS), fuse(make(), tensors, SCALE))
    mlx_lms = load_adapters(make(), str(folder))
    mlx_lms.eval()
    assert_judged(read(found, PREFIX, TAILS), mlx_lms)
    other = scaled(found, adapters, -0.75)
    assert_judged(read(other, PREFIX, TAILS), fuse(make(), tensors, -0.75 * SCALE))
    with pytest.raises(AssertionError):  # the comparison can fail
        assert_judged(read(other, PREFIX, TAILS), mlx_lms)


@pytest.mark.parametrize("name", MODELS)
def test_model_with_nothing_published_has_its_own_bits(processor_operations: None, tmp_path: Path, name: str) -> None:
    """Adapters beside the layers change no bit of a read without them, before and after one with them, nor at 0."""
    make, endings = MODELS[name]
    own = read(plain_reader(make()), PREFIX, TAILS)
    model = make()
    parameters = sum(a.size for _, a in nn.utils.tree_flatten(model.parameters()))
    adapters = load(model, adapter_folder(tmp_path / "one", matrices(model, modules(model, *endings))))
    alone = plain_reader(model)
    assert read(alone, PREFIX, TAILS) == own
    assert read(scaled(alone, adapters, 1.0), PREFIX, TAILS) != own
    assert read(alone, PREFIX, TAILS) == own
    assert sum(a.size for _, a in nn.utils.tree_flatten(model.parameters())) == parameters
    assert read(scaled(alone, adapters, 0.0), PREFIX, TAILS) == own


@pytest.mark.parametrize("name", HEADS)
def test_adapted_head_is_read_as_it_is(processor_operations: None, tmp_path: Path, name: str) -> None:
    """An adapter on the head, tied or not, leaves the letters' own rows: scores follow it at every scale."""
    make, endings = HEADS[name]
    model = make()
    tensors = matrices(model, modules(model, *endings))
    adapters = load(model, adapter_folder(tmp_path / "one", tensors))
    load(model, adapter_folder(tmp_path / "two", matrices(model, modules(model, "v_proj"))), "two", adapters)
    found = reader(model, adapters)
    assert (found.manner.head.path, found.manner.head.rows) == (LOGITS, None)
    for scale in (1.0, 0.25, -1.5):
        assert_judged(read(scaled(found, adapters, scale), PREFIX, TAILS), fuse(make(), tensors, scale * SCALE))
    assert_judged(read(scaled(found, adapters, 0.0), PREFIX, TAILS), make())
    assert plain_reader(model).manner.head.path == ROWS
    with adapters.published((Adapter("two"),)):
        assert plain_reader(model).manner.head.path == ROWS


def test_adapted_rows_keep_their_own_bits(processor_operations: None, tmp_path: Path) -> None:
    """Thin products make no row depend on its companions or lanes: forwards stay shared, and spread when alone."""
    model = wide_model()
    tensors = matrices(model, modules(model, "_proj"), rank=64, size=0.03)
    found = reader(model, load(model, adapter_folder(tmp_path / "one", tensors)))
    assert (found.manner.rows_limit, found.manner.spread) == (FORWARD_TOKENS, True)
    tails = [ids(n, seed=2) for n in (20, 25, 32, 30, 40, 38, 33, 64, 60)]
    together = read(found, PREFIX, tails)
    alone = [read(found, PREFIX, [tail])[0] for tail in tails]
    assert [(one.letters, one.log_total) for one in together] == [(one.letters, one.log_total) for one in alone]


@pytest.mark.parametrize("rank", [8, 16, 64])
def test_thin_products_do_not_depend_on_the_number_of_rows(rank: int) -> None:
    """A row's product has the same bits alone and beside others, at sizes where one product over all has not."""
    x, a, b = (mx.random.normal(shape) for shape in ((8, 32, 576), (576, rank), (rank, 576)))
    together = _thin(_thin(x, a), b)
    for rows in (1, 2, 4):
        assert mx.array_equal(_thin(_thin(x[:rows], a), b), together[:rows])


def test_quantized_layers_are_adapted(tmp_path: Path) -> None:
    """Layers that stay packed take an adapter of their unpacked size."""
    from mlx_lm.tuner.utils import load_adapters

    def make() -> Any:
        model = family_model("qwen3_moe", moe_intermediate_size=64)
        nn.quantize(model, group_size=32, bits=8)
        return model

    model = make()
    folder = adapter_folder(
        tmp_path / "one", matrices(model, modules(model, "q_proj", "up_proj", "embed_tokens", "lm_head"))
    )
    adapters, judge = load(model, folder), load_adapters(make(), str(folder))
    judge.eval()
    with adapters.published((Adapter("one"),)):
        found = model(mx.array([ids(20)]))
    right = judge(mx.array([ids(20)]))
    assert mx.abs(found - right).max().item() <= 1e-5 * mx.abs(right).max().item()


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "experts", "flat experts"])
@pytest.mark.parametrize("length", [1, 24])
def test_rows_of_one_forward_have_their_own_adapters(tmp_path: Path, name: str, length: int) -> None:
    """Each row has the bits of the same batch with its adapter for all rows; one without, those of the model alone.

    Against the row by itself, which is a batch of another shape, within rounding.
    """
    make, endings = MODELS[name]
    model = make()
    adapters = load(model, adapter_folder(tmp_path / "one", matrices(model, modules(model, *endings))))
    load(model, adapter_folder(tmp_path / "two", matrices(model, modules(model, "q_proj"), seed=2)), "two", adapters)
    rows = [Adapter("one"), None, Adapter("two", 1.5), Adapter("one", 0.5), None]
    prompts = [ids(length, seed=i) for i in range(len(rows))]

    def logits(prompts: list[list[int]], *published: Adapter | None) -> Any:
        with adapters.published(published):
            return model(mx.array(prompts), cache=caches.make_prompt_cache(model))

    mixed = logits(prompts, *rows)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        assert mx.array_equal(mixed[i], logits(prompts, row)[i])
        by_itself = logits([prompt], row)[0]
        assert mx.abs(mixed[i] - by_itself).max().item() <= 1e-5 * mx.abs(by_itself).max().item()
    assert mx.array_equal(mixed[1], make()(mx.array(prompts), cache=caches.make_prompt_cache(model))[1])


def test_rows_that_cannot_be_told_apart_are_found(tmp_path: Path) -> None:
    """Where a layer sees positions in place of rows, an adapter on it cannot be one row's: the probe says so."""
    model = family_model("gpt2")
    adapters = load(model, adapter_folder(tmp_path / "one", matrices(model, modules(model, "wpe"))))
    load(model, adapter_folder(tmp_path / "two", matrices(model, modules(model, "c_attn"))), "two", adapters)
    assert not rows_apart(model, adapters, "one", ids(20))
    assert rows_apart(model, adapters, "two", ids(20))


def test_rows_that_a_layer_sees_in_another_order_are_found(tmp_path: Path) -> None:
    """Nothing fails there, but each row has the other's adapter: the probe looks at the numbers."""
    model = tiny_model("llama")
    adapters = load(model, adapter_folder(tmp_path / "one", matrices(model, modules(model, "down_proj"))))
    assert rows_apart(model, adapters, "one", ids(20))
    kind = type(model.layers[0].mlp)

    class Turned(kind):  # type: ignore[misc,valid-type]
        """A gated layer that takes its rows last first."""

        def __call__(self, x: Any) -> Any:
            return super().__call__(x[::-1])[::-1]

    model.layers[0].mlp.__class__ = Turned
    assert not rows_apart(model, adapters, "one", ids(20))


def test_what_is_published_is_taken_back(tmp_path: Path) -> None:
    """After the block, and after a fault inside it, the model is alone; blocks do not nest."""
    from mlx_lm.models import switch_layers

    model = family_model("qwen3_moe")
    adapters = load(model, adapter_folder(tmp_path / "one", matrices(model, modules(model, "switch_mlp.up_proj"))))
    own, stock = model(mx.array([ids(40)])), switch_layers._gather_sort

    def fail() -> None:
        with adapters.published((Adapter("one"), None)):
            assert not mx.array_equal(model(mx.array([ids(40), ids(40)]))[0], own[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert mx.array_equal(model(mx.array([ids(40)])), own)
    assert switch_layers._gather_sort is stock
    with adapters.published((Adapter("one"),)), pytest.raises(AssertionError, match="already"):
        adapters.published((Adapter("one"),)).__enter__()
    assert mx.array_equal(model(mx.array([ids(40)])), own)


def test_salt_tells_adapters_scales_and_files_apart(tmp_path: Path) -> None:
    """Whatever changes a number changes the salt; the model alone has none."""
    model = tiny_model("llama")
    first = matrices(model, modules(model, "q_proj"))
    adapters = load(model, adapter_folder(tmp_path / "one", first))
    load(model, adapter_folder(tmp_path / "two", first), "two", adapters)
    changed = load(
        tiny_model("llama"), adapter_folder(tmp_path / "one", matrices(model, modules(model, "q_proj"), seed=5))
    )
    salts = [adapters.salt(Adapter("one")), adapters.salt(Adapter("one", 0.5)), adapters.salt(Adapter("two"))]
    assert len({*salts, changed.salt(Adapter("one"))}) == 4
    assert adapters.salt(None) == ""
    assert adapters.salt(Adapter("one", 1)) == salts[0]


def test_adapters_are_counted_in_the_numbers_that_they_are_held_in(tmp_path: Path) -> None:
    """On a processor in float32 whatever the file's type, elsewhere as they come."""
    model = tiny_model("llama")
    halves = {name: a.astype(mx.float16) for name, a in matrices(model, modules(model, "q_proj", "v_proj")).items()}
    folder = adapter_folder(tmp_path / "one", halves)
    wide, narrow = load(model, folder), Adapters()
    narrow.load(tiny_model("llama"), "one", folder, float32=False)
    assert wide.nbytes == 2 * narrow.nbytes == 4 * sum(a.size for a in halves.values())
    assert wide.names == ("one",)


def test_adapter_trained_by_mlx_lm_is_loaded(tmp_path: Path) -> None:
    """The files of mlx-lm's own conversion and saving, a model's default layers among them, are the format."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    trained = tiny_model("qwen3_5")
    parameters = {"rank": 3, "scale": 10.0, "dropout": 0.0}
    trained.freeze()
    linear_to_lora_layers(trained, 2, parameters)
    tensors = dict(nn.utils.tree_flatten(trained.trainable_parameters()))
    mx.random.seed(3)
    tensors = {name: 0.1 * mx.random.normal(a.shape) for name, a in tensors.items()}
    trained.load_weights(list(tensors.items()), strict=False)
    trained.eval()
    folder = adapter_folder(tmp_path / "one", tensors, lora_parameters=parameters)
    model = tiny_model("qwen3_5")
    adapters = load(model, folder)
    with adapters.published((Adapter("one"),)):
        found = model(mx.array([ids(20)]))
    right = trained(mx.array([ids(20)]))
    assert mx.abs(found - right).max().item() <= 1e-5 * mx.abs(right).max().item()

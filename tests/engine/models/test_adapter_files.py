"""Adapters' files: what mlx-lm writes is loaded, and a fault is one sentence with the adapter and the file in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.models.adapters import Adapters
from letterwise_service.errors import LoadFailed
from tests.engine.models.adapter_files import adapter_folder, matrices, modules
from tests.families import family_model
from tests.tiny import tiny_model


def _with(change: Callable[[dict[str, Any], Path], None]) -> Callable[[Path, Any], None]:
    """Writes an adapter's folder with its tensors changed."""

    def write(folder: Path, model: Any) -> None:
        tensors = matrices(model, modules(model, "layers.0.self_attn.q_proj"))
        change(tensors, folder)
        adapter_folder(folder, tensors)

    return write


def _config(**config: Any) -> Callable[[Path, Any], None]:
    """Writes an adapter's folder with its configuration changed."""

    def write(folder: Path, model: Any) -> None:
        adapter_folder(folder, matrices(model, modules(model, "layers.0.self_attn.q_proj")), **config)

    return write


def _then(name: str, change: Callable[[Path], object]) -> Callable[[Path, Any], None]:
    """Writes an adapter's folder and then changes one of its files."""

    def write(folder: Path, model: Any) -> None:
        _config()(folder, model)
        change(folder / name)

    return write


def _renamed(old: str, new: str) -> Callable[[Path, Any], None]:
    def change(tensors: dict[str, Any], folder: Path) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return _with(change)


Q = "model.layers.0.self_attn.q_proj"
CONFIG, TENSORS = "adapter_config.json", "adapters.safetensors"
BROKEN: dict[str, tuple[Callable[[Path, Any], None], str]] = {
    "no configuration": (_then(CONFIG, Path.unlink), f"{CONFIG} cannot be read"),
    "no json": (_then(CONFIG, lambda path: path.write_text("{")), f"{CONFIG} is not valid JSON"),
    "not text": (_then(CONFIG, lambda path: path.write_bytes(b"\xff\xfe")), f"{CONFIG} is not valid JSON"),
    "a list": (_then(CONFIG, lambda path: path.write_text("[]")), f"{CONFIG} is not a JSON object"),
    "dora": (_config(fine_tune_type="dora"), "type 'dora'; only LoRA"),
    "full": (_config(fine_tune_type="full"), "type 'full'; only LoRA"),
    "peft": (_config(lora_parameters=None, lora_alpha=16), "no lora_parameters with a scale"),
    "no scale": (_config(lora_parameters={"rank": 4, "alpha": 16}), "no lora_parameters with a scale"),
    "scale not finite": (_config(lora_parameters={"rank": 4, "scale": math.nan}), "no lora_parameters with a scale"),
    "scale no number": (_config(lora_parameters={"scale": True}), "no lora_parameters with a scale"),
    "scale past all": (_config(lora_parameters={"scale": 10**400}), "no lora_parameters with a scale"),
    "another rank": (_config(lora_parameters={"rank": 8, "scale": 1.0}), f"{Q}.lora_a is of rank 4"),
    "no tensors": (_then(TENSORS, Path.unlink), f"{TENSORS} cannot be read"),
    "cut short": (_then(TENSORS, lambda path: path.write_bytes(path.read_bytes()[:-9])), "cut short: 9 bytes"),
    "no safetensors": (_then(TENSORS, lambda path: path.write_bytes(b"nothing")), "not a safetensors file"),
    "empty": (_with(lambda tensors, _: tensors.clear()), "holds no matrices"),
    "no half": (_with(lambda tensors, _: tensors.pop(f"{Q}.lora_b")), f"{Q}.lora_a without {Q}.lora_b"),
    "magnitudes": (_with(lambda tensors, _: tensors.update({f"{Q}.m": mx.ones((64,))})), f"{Q}.m, which is no part"),
    "a weight": (_with(lambda t, _: t.update({"lm_head.weight": mx.ones((2, 2))})), "lm_head.weight, which is no part"),
    "integers": (
        _with(lambda tensors, _: tensors.update({f"{Q}.lora_b": mx.zeros((4, 64), dtype=mx.int8)})),
        "type I8, not one of F32, F16, BF16",
    ),
    "no matrix": (_with(lambda tensors, _: tensors.update({f"{Q}.lora_b": mx.zeros((4,))})), r"is \(4,\), which is no"),
    "not finite": (
        _with(lambda tensors, _: tensors.update({f"{Q}.lora_b": mx.full((4, 64), math.inf)})),
        f"{Q}.lora_b has numbers that are not finite",
    ),
    "wrong shape": (
        _with(lambda tensors, _: tensors.update({f"{Q}.lora_a": mx.zeros((32, 4))})),
        r"q_proj.lora_a is \(32, 4\), and the model's layer takes \(64, 4\)",
    ),
    "two ranks": (
        _with(lambda tensors, _: tensors.update({f"{Q}.lora_b": mx.zeros((3, 64))})),
        r"q_proj.lora_b is \(3, 64\), and the model's layer takes \(4, 64\)",
    ),
    "no such layer": (_renamed("layers.0", "layers.9"), "layers.9.self_attn.q_proj, which the model does not have"),
    "no such module": (_renamed("q_proj", "z_proj"), "z_proj, which the model does not have"),
    "a place named twice": (
        _with(lambda t, _: t.update({name.replace("layers.0", "layers.00"): t[name] for name in list(t)})),
        "layers.00.self_attn.q_proj, which the model does not have",
    ),
    "overflowing": (
        _with(lambda t, _: t.update({name: 1e30 * array for name, array in t.items()})),
        f"{TENSORS} the model's scores are not finite",
    ),
    "below a layer": (_renamed("q_proj", "q_proj.weight"), "which the model does not have|cannot be adapted"),
    "a norm": (
        _renamed("self_attn.q_proj", "input_layernorm"),
        "input_layernorm, and a RMSNorm layer cannot be adapted",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_adapter_is_named(tmp_path: Path, fault: str) -> None:
    """Each fault of a folder is one sentence that names the adapter and the file."""
    write, told = BROKEN[fault]
    model, folder = tiny_model("llama"), tmp_path / "one"
    write(folder, model)
    with pytest.raises(LoadFailed, match=told) as failed:
        Adapters().load(model, "billing", folder, float32=True)
    assert str(failed.value).startswith("adapter billing: ")
    assert str(folder) in str(failed.value)
    assert "\n" not in str(failed.value)


def test_adapter_on_a_layer_that_the_model_looks_into_is_refused(tmp_path: Path) -> None:
    """A head that multiplies by the table itself would leave an adapter on it out: such a model does not take it."""
    model = family_model("minicpm", tie_word_embeddings=True)
    folder = adapter_folder(tmp_path / "one", matrices(model, modules(model, "embed_tokens")))
    with pytest.raises(LoadFailed, match="adapter one: the model does not run with the layers that"):
        Adapters().load(model, "one", folder, float32=True)

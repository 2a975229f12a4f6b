"""Random adapters in mlx-lm's format for a model at hand, and the model with one of them fused: the judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from letterwise_service.engine.backend import experts, mx, nn

RANK, SCALE = 4, 2.0


def modules(model: Any, *endings: str) -> list[str]:
    """The paths of the model's modules that end so."""
    return [path for path, _ in model.named_modules() if path.endswith(endings)]


def matrices(
    model: Any, paths: Iterable[str], *, rank: int = RANK, seed: int = 1, size: float = 0.15
) -> dict[str, Any]:
    """Random tensors that adapt the modules at `paths`, large enough to change every score."""
    mx.random.seed(seed)
    named, found = dict(model.named_modules()), {}
    for path in paths:
        a, b = _shapes(named[path], rank)
        found[f"{path}.lora_a"] = size * mx.random.normal(a)
        found[f"{path}.lora_b"] = size * mx.random.normal(b)
    return found


def adapter_folder(folder: Path, tensors: dict[str, Any], *, scale: float = SCALE, **config: Any) -> Path:
    """A folder as `mlx_lm.lora` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted({name.rpartition(".")[0] for name in tensors})
    rank = next((a.shape[1] for name, a in tensors.items() if name.endswith("lora_a") and a.ndim > 1), RANK)
    told = {
        "fine_tune_type": "lora",
        "num_layers": 100,
        "lora_parameters": {
            "rank": rank,
            "scale": scale,
            "dropout": 0.0,
            "keys": sorted({re.sub(r"^.*?layers\.\d+\.", "", path) for path in paths}),
        },
    }
    (folder / "adapter_config.json").write_text(json.dumps({**told, **config}))
    mx.save_safetensors(str(folder / "adapters.safetensors"), tensors)
    return folder


def fuse(model: Any, tensors: dict[str, Any], scale: float) -> Any:
    """The model with what the adapter adds added to its weights: W + scale · (A B)ᵀ."""
    named = dict(model.named_modules())
    for path in sorted({name.rpartition(".")[0] for name in tensors}):
        layer, a, b = named[path], tensors[f"{path}.lora_a"], tensors[f"{path}.lora_b"]
        if isinstance(layer, experts.SwitchLinear):
            added = b @ a
        else:
            added = a @ b if isinstance(layer, nn.Embedding) else (a @ b).T
        layer.weight = layer.weight + scale * added
    mx.eval(model.parameters())
    return model


def _shapes(layer: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    layer = getattr(layer, "base", layer)  # adapted already
    *outer, inner = layer.weight.shape
    inner = layer.scales.shape[-1] * layer.group_size if hasattr(layer, "scales") else inner
    if len(outer) == 2:
        return (outer[0], rank, inner), (outer[0], outer[1], rank)
    if isinstance(layer, nn.Embedding | nn.QuantizedEmbedding):
        return (outer[0], rank), (rank, inner)
    return (inner, rank), (rank, outer[0])

"""LoRA adapters in mlx-lm's format: read at the start, put beside the model's layers, published forward by forward.

Engine thread. A folder has `adapter_config.json`, for the scale, and `adapters.safetensors`, whose tensors' names say
which layers are adapted (`model.layers.0.self_attn.q_proj.lora_a`). Every fault is one LoadFailed sentence that names
the adapter and the file. What the layers do with it all is in `adapted.py`; which rows read with what, the callers'.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LoadFailed
from ...method.request import Adapter
from ..backend import mx
from .adapted import Adapted, Delta, Publication, adapted
from .checkpoint import tensors_of

_CONFIG, _TENSORS = "adapter_config.json", "adapters.safetensors"
_LARGEST_SCALE = 1e6
_NUMBERS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class _Held:
    """An adapter that was loaded: its own scale, a name for its exact numbers, its size."""

    scale: float
    identity: str
    nbytes: int


class Adapters:
    """The adapters of one model, by name; none to begin with."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._publication = Publication()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def load(self, model: Any, name: str, folder: Path, *, float32: bool) -> None:
        """Put the adapter of `folder` beside the layers of `model`, as float32 if so. Raises LoadFailed."""
        file = folder / _TENSORS
        try:
            scale, rank = _settings(folder / _CONFIG)
            modules = _modules(file, rank)
            matrices = _matrices(file, float32=float32)
            for module in modules:
                delta = Delta(matrices[f"{module}.lora_a"], matrices[f"{module}.lora_b"])
                self._layer(model, module, file, delta).deltas.hold(name, delta)
            self._held[name] = _Held(scale, _digest(file), sum(array.nbytes for array in matrices.values()))
            self._check_runs(model, name, file)
        except LoadFailed as error:
            raise LoadFailed(f"adapter {name}: {error}") from error

    @contextmanager
    def published(self, rows: Sequence[Adapter | None]) -> Iterator[None]:
        """Forwards that are built inside the block read with these adapters: row i with `rows[i]`, None with none.

        What a forward needs is the call of the model inside the block and nothing else: its arrays may be evaluated
        later. Rows that all name the same, at the same scale, serve a batch of any size, so one stands for all; rows
        that differ are those of the batch, in its order (for mlx-lm's BatchGenerator: the order of that batch's
        `uids`, its prompts and its generation being two batches), ids (rows, L). Blocks do not nest. A row that reads
        with nothing gets 0 · (x A) B added, so its bits are the model's own; every other row's are those that it has
        in the same batch with its adapter for all rows.
        """
        shared = all(row == rows[0] for row in rows)
        told = rows[:1] if shared else rows
        scales = {
            row.name: mx.array([self._scale(row.name, other) for other in told], dtype=mx.float32)
            for row in told
            if row is not None
        }
        with self._publication.publish(scales, len(told)):
            yield

    def salt(self, adapter: Adapter | None) -> str:
        """What keeps apart records of other adapters or other scales: name, identity and scale; "" for none."""
        if adapter is None:
            return ""
        return f"adapter {adapter.name} {self._held[adapter.name].identity} at {float(adapter.scale)!r}"

    def _scale(self, name: str, row: Adapter | None) -> float:
        return self._held[name].scale * row.scale if row is not None and row.name == name else 0.0

    def _layer(self, model: Any, module: str, file: Path, delta: Delta) -> Adapted:
        """The adapted layer at a place of the model, made if it is the first adapter's, the matrices being its size."""
        holder, key, layer = _place(model, module)
        if layer is None:
            raise LoadFailed(f"{file} adapts {module}, which the model does not have")
        found = adapted(layer, self._publication)
        if found is None:
            raise LoadFailed(f"{file} adapts {module}, and a {type(layer).__name__} layer cannot be adapted")
        shapes = found.shapes(delta.a.shape[1])
        for part, array, shape in (("lora_a", delta.a, shapes[0]), ("lora_b", delta.b, shapes[1])):
            if array.shape != shape:
                raise LoadFailed(f"{file}: {module}.{part} is {array.shape}, and the model's layer takes {shape}")
        if found is not layer:
            holder[key] = found
        return found

    def _check_runs(self, model: Any, name: str, file: Path) -> None:
        """Some models look into a layer's weights past its call: those cannot have it adapted.

        Nor does an adapter serve whose products overflow, each of its numbers being finite.
        """
        ids = mx.array([[0, 1]])
        try:
            with self.published([Adapter(name)]):
                scores = model(ids)
            mx.eval(scores)
        except Exception as error:
            raise LoadFailed(
                f"the model does not run with the layers that {file} adapts ({_in_a_line(error)})"
            ) from error
        if (mx.isfinite(model(ids)) & ~mx.isfinite(scores)).any().item():
            raise LoadFailed(f"with the numbers of {file} the model's scores are not finite")


def _settings(path: Path) -> tuple[float, int | None]:
    """The scale of an adapter's configuration, and its rank if it says one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadFailed(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise LoadFailed(f"{path} is not valid JSON") from None
    if not isinstance(config, dict):
        raise LoadFailed(f"{path} is not a JSON object")
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise LoadFailed(f"{path} describes a fine-tune of the type {kind!r}; only LoRA adapters are served")
    parameters = config.get("lora_parameters")
    scale, rank = (parameters.get(key) for key in ("scale", "rank")) if isinstance(parameters, dict) else (None, None)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= _LARGEST_SCALE:
        raise LoadFailed(f"{path} has no lora_parameters with a scale, as mlx-lm writes them")
    return float(scale), rank if isinstance(rank, int) else None


def _modules(file: Path, rank: int | None) -> list[str]:
    """The adapted modules by the file's header, each with both of its matrices, in the configuration's rank."""
    try:
        tensors = tensors_of(file)
    except OSError as error:
        raise LoadFailed(f"{file} cannot be read ({error.strerror})") from None
    modules = dict.fromkeys(name.rpartition(".")[0] for name in tensors)
    for name, (kind, shape) in tensors.items():
        module, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b") or not module:
            raise LoadFailed(f"{file} holds {name}, which is no part of a LoRA adapter")
        if kind not in _NUMBERS:
            raise LoadFailed(f"{file}: {name} has numbers of the type {kind}, not one of {', '.join(_NUMBERS)}")
        if len(shape) < 2 or 0 in shape:
            raise LoadFailed(f"{file}: {name} is {shape}, which is no matrix")
        other = f"{module}.{'lora_b' if part == 'lora_a' else 'lora_a'}"
        if other not in tensors:
            raise LoadFailed(f"{file} holds {name} without {other}")
        if part == "lora_a" and rank not in (None, shape[1]):
            raise LoadFailed(f"{file}: {name} is of rank {shape[1]}, and {_CONFIG} beside it says {rank}")
    if not modules:
        raise LoadFailed(f"{file} holds no matrices")
    return list(modules)


def _matrices(file: Path, *, float32: bool) -> dict[str, Any]:
    """The file's arrays, in memory, every number finite."""
    try:
        read: Any = mx.load(str(file))
        found = {name: array.astype(mx.float32) if float32 else array for name, array in read.items()}
        mx.eval(found)
    except Exception as error:
        raise LoadFailed(f"{file} cannot be loaded ({_in_a_line(error)})") from error
    for name, array in found.items():
        if not mx.isfinite(array).all().item():
            raise LoadFailed(f"{file}: {name} has numbers that are not finite")
    return found


def _place(model: Any, module: str) -> tuple[Any, Any, Any]:
    """Where a module is: what holds it, under which key, and itself; None where there is no such place."""
    holder, key, found = None, None, model
    for part in module.split("."):
        holder, key = found, int(part) if re.fullmatch(r"0|[1-9][0-9]{0,8}", part) else part
        if isinstance(holder, list) and isinstance(key, int):
            found = holder[key] if key < len(holder) else None
        else:
            found = holder.get(part) if isinstance(holder, dict) else None
            key = part
    return holder, key, found


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"

"""A model folder's files, looked at before anything is read into memory: configuration, tensors, identity.

Pure file reading, on any thread; knows nothing of mlx. Every fault is one LoadFailed sentence.
The safetensors format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import LoadFailed

_LONGEST_HEADER = 100 * 2**20
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "tiktoken.model",
    "*.tiktoken",
)


@dataclass(frozen=True)
class Checkpoint:
    """A folder that has what a model needs. `tensors` maps a name to (dtype, shape)."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    files: tuple[Path, ...]

    @property
    def file_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def float32_bytes(self) -> int:
        """The size of all tensors once dequantized to float32."""
        return sum(4 * self._values(name, dtype, shape) for name, (dtype, shape) in self.tensors.items())

    def _values(self, name: str, dtype: str, shape: tuple[int, ...]) -> int:
        stem = name.rpartition(".")[0]
        if name.endswith((".scales", ".biases")) and f"{stem}.weight" in self.tensors:
            return 0  # counted with the weight that they scale
        if name.endswith(".weight") and dtype == "U32" and f"{stem}.scales" in self.tensors:
            return math.prod(self.tensors[f"{stem}.scales"][1]) * self._group_size(stem)
        packed = 8 if name.endswith(".qweight") else 1
        return math.prod(shape) * packed

    def _group_size(self, stem: str) -> int:
        settings = self.config.get("quantization") or self.config.get("quantization_config") or {}
        own = settings.get(stem)
        return int((own if isinstance(own, dict) else settings).get("group_size", 64))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Look through a model folder in mlx-lm's format. Raises LoadFailed for whatever is missing or broken."""
    config = _config(folder)
    files = tuple(sorted(folder.glob("model*.safetensors")))
    if not files:
        raise LoadFailed(f"{folder} has no weights (model*.safetensors)")
    if not any(True for pattern in _TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise LoadFailed(f"{folder} has no tokenizer ({', '.join(_TOKENIZER_FILES)})")
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in files:
        tensors.update(tensors_of(path))
    return Checkpoint(folder, config, tensors, files)


def identity(files: Iterable[Path], more: bytes = b"") -> str:
    """A name for these exact weights that reads little: sizes, heads and samples spread over each file."""
    digest = hashlib.sha256(more)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            for index in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return f"sha256:{digest.hexdigest()}"


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadFailed(f"{folder} is not a model folder: config.json cannot be read ({error.strerror})") from None
    except ValueError:
        raise LoadFailed(f"{path} is not valid JSON") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LoadFailed(f"{path} does not name a model_type")
    if config.get("model_file") is not None:
        raise LoadFailed(f"{folder} brings its own model code ({config['model_file']}), which is never run")
    return config


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of one safetensors file, after a check that the file holds all their bytes. Raises LoadFailed."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size - 8, _LONGEST_HEADER):
                raise LoadFailed(f"{path} is cut short or not a safetensors file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        found = {name: (str(entry["dtype"]), tuple(entry["shape"])) for name, entry in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise LoadFailed(f"{path} is not a safetensors file, or its header is damaged") from None
    if end > size:
        raise LoadFailed(f"{path} is cut short: {end - size:,} bytes are missing at its end")
    return found

"""A GGUF file: its metadata, where its tensors stand, and their values in any quantization type.

Pure file reading, on any thread. Knows nothing of mlx, of architectures or of tokenizers.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ...errors import LoadFailed

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Tensor:
    """Where one tensor stands. `shape` is row-major: the last axis is the one stored together."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    bytes: int


class GgufFile:
    """A GGUF file's metadata and tensors, read through a memory map. Raises LoadFailed if it is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise LoadFailed(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        try:
            self._read_header()
        except (struct.error, IndexError, UnicodeDecodeError):
            raise LoadFailed(f"{path} is cut short or damaged: its header does not end") from None

    def _read_header(self) -> None:
        cursor = _Cursor(self._map)
        if cursor.take(4) != b"GGUF":
            raise LoadFailed(f"{self.path} is not a GGUF file")
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise LoadFailed(f"{self.path} is GGUF version {version}; versions 2 and 3 (little-endian) are read")
        tensors, entries = cursor.scalar("Q"), cursor.scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        found = [self._read_tensor(cursor) for _ in range(tensors)]
        alignment = self.integer("general.alignment", 32)
        if alignment < 1:
            raise LoadFailed(f"{self.path} gives {alignment} as its alignment")
        self.header_bytes = cursor.position
        self._place(found, -(-cursor.position // alignment) * alignment)

    def _read_tensor(self, cursor: _Cursor) -> Tensor:
        name = cursor.string()
        shape = tuple(cursor.scalar("Q") for _ in range(cursor.scalar("I")))[::-1]
        code, start = cursor.scalar("I"), cursor.scalar("Q")
        try:
            kind = GGMLQuantizationType(code)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise LoadFailed(f"{self.path}: tensor {name} has quantization type {code}, which is not known") from None
        if not shape or shape[-1] % block:
            raise LoadFailed(f"{self.path}: tensor {name} of shape {shape} does not fit type {kind.name}")
        count = math.prod(shape)
        return Tensor(name, shape, kind, start, count // block * block_bytes)

    def _place(self, tensors: list[Tensor], data_start: int) -> None:
        self.tensors = {t.name: Tensor(t.name, t.shape, t.kind, data_start + t.start, t.bytes) for t in tensors}
        missing = max((t.start + t.bytes for t in self.tensors.values()), default=0) - len(self._map)
        if missing > 0:
            raise LoadFailed(f"{self.path} is cut short: {missing:,} bytes are missing at its end")

    @property
    def values(self) -> int:
        """How many numbers the tensors hold."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    def need(self, key: str) -> Any:
        """A metadata value that the file must have."""
        if key not in self.metadata:
            raise LoadFailed(f"{self.path} lacks the metadata {key}")
        return self.metadata[key]

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number from the metadata; the file must have it where there is no default."""
        value = self.need(key) if default is None else self.metadata.get(key, default)
        if isinstance(value, list) or not isinstance(value, int):
            raise LoadFailed(f"{self.path}: {key} is not one whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number from the metadata, likewise."""
        value = self.need(key) if default is None else self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise LoadFailed(f"{self.path}: {key} is not one number")
        return float(value)

    def texts(self, key: str) -> list[str]:
        """A list of texts that the metadata must have."""
        value = self.need(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise LoadFailed(f"{self.path}: {key} is not a list of texts")
        return value

    def float32(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A tensor's values, dequantized."""
        tensor = self.tensors[name]
        raw = np.frombuffer(self._map, dtype=np.uint8, count=tensor.bytes, offset=tensor.start)
        rows = raw.reshape(*tensor.shape[:-1], -1)
        try:
            values = dequantize(rows, tensor.kind)
        except NotImplementedError:
            raise LoadFailed(f"{self.path}: quantization type {tensor.kind.name} cannot be decoded") from None
        return np.ascontiguousarray(values.reshape(tensor.shape), dtype=np.float32)


class _Cursor:
    """Reads GGUF's primitive values one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.position:
            raise IndexError("past the end")
        self.position += count
        return self._data[self.position - count : self.position]

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.take(layout.size))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise IndexError(f"value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
            return list(layout.unpack(self.take(layout.size)))
        return [self.value(kind) for _ in range(count)]

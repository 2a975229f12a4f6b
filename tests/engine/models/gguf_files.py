"""Small GGUF files written for tests by the `gguf` package's own writer: tiny random models and vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, RopeScalingType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

from tests.tiny import CHATML, SPECIALS

WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 256, 4, 2, 64, 512, 2
ALPHABET = sorted(ByteLevel.alphabet())
TOKENS = [*ALPHABET, *SPECIALS, "ab", "abc"]
BASE, EPSILON = 5000.0, 1e-5
_WITH_QUANTIZER = {Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0}


def tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    tied: bool = False,
    rope_factors: Sequence[float] | None = None,
    linear: float | None = None,
    leave_out: str = "",
    change: Callable[[GGUFWriter], None] | None = None,
    template: str | None = CHATML,
    pre: str = "gpt-2",
    seed: int = 3,
) -> Path:
    """A random model of two layers, its matrices in `kind`. `leave_out` names a tensor or metadata to omit."""
    writer = _Writer(path, architecture, leave_out, kind, seed)
    _write_settings(writer, linear)
    write_byte_vocabulary(writer, pre)
    if template is not None:
        writer.add_chat_template(template)
    if change is not None:
        change(writer)
    _write_tensors(writer, tied, rope_factors)
    return finish(writer, path)


def finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Writer(GGUFWriter):
    """A GGUFWriter that leaves something out and makes its own random tensors."""

    def __init__(self, path: Path, architecture: str, leave_out: str, kind: Kind, seed: int) -> None:
        self._leave_out, self._kind, self._random = leave_out, kind, np.random.default_rng(seed)
        super().__init__(str(path), architecture)

    def add_key_value(self, key: str, *arguments: Any, **more: Any) -> None:
        if key != self._leave_out:
            super().add_key_value(key, *arguments, **more)

    def put(self, name: str, *shape: int, scale: float = 0.1, offset: float = 0.0) -> None:
        values = (self._random.standard_normal(shape) * scale + offset).astype(np.float32)
        if name == self._leave_out:
            return
        if len(shape) == 1 or self._kind == Kind.F32:
            self.add_tensor(name, values)
        elif self._kind in _WITH_QUANTIZER:
            self.add_tensor(name, quantize(values, self._kind), raw_dtype=self._kind)
        else:
            self.add_tensor(name, self._packed(*shape), raw_dtype=self._kind)

    def _packed(self, *shape: int) -> np.ndarray[Any, Any]:
        """Random bytes of a type without a quantizer, small enough that no scale in them is huge or not a number."""
        block, size = GGML_QUANT_SIZES[self._kind]
        return self._random.integers(0, 0x28, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)


def _write_settings(writer: _Writer, linear: float | None) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    if linear:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(linear)


def write_byte_vocabulary(writer: GGUFWriter, pre: str = "gpt-2") -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in TOKENS])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(TOKENS.index(SPECIALS[0]))
    writer.add_eos_token_id(TOKENS.index(SPECIALS[2]))


def _write_tensors(writer: _Writer, tied: bool, rope_factors: Sequence[float] | None) -> None:
    writer.put("token_embd.weight", len(TOKENS), WIDTH, scale=1.0)
    writer.put("output_norm.weight", WIDTH, offset=1.0)
    if not tied:
        writer.put("output.weight", len(TOKENS), WIDTH)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_factors, dtype=np.float32))
    for layer in range(LAYERS):
        _write_layer(writer, f"blk.{layer}.")


def _write_layer(writer: _Writer, layer: str) -> None:
    writer.put(layer + "attn_norm.weight", WIDTH, offset=1.0)
    writer.put(layer + "ffn_norm.weight", WIDTH, offset=1.0)
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        writer.put(f"{layer}attn_{name}.weight", heads * HEAD_DIM, WIDTH)
        if writer.arch == "qwen2":
            writer.put(f"{layer}attn_{name}.bias", heads * HEAD_DIM, scale=0.5)
        if writer.arch == "qwen3" and name != "v":
            writer.put(f"{layer}attn_{name}_norm.weight", HEAD_DIM, offset=1.0)
    writer.put(layer + "attn_output.weight", WIDTH, HEADS * HEAD_DIM)
    writer.put(layer + "ffn_gate.weight", HIDDEN, WIDTH)
    writer.put(layer + "ffn_up.weight", HIDDEN, WIDTH)
    writer.put(layer + "ffn_down.weight", WIDTH, HIDDEN)

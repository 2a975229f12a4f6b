"""A GGUF file as a model: its metadata becomes mlx-lm's configuration, its tensors mlx-lm's parameters.

Covers the llama, qwen2 and qwen3 architectures. Runs on the engine thread. Knows nothing of where a file comes
from, nor of tokenizers (`gguf_tokenizer`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from gguf.constants import GGMLQuantizationType

from ...errors import LoadFailed
from ..backend import mx, nn
from .gguf import GgufFile

Progress: TypeAlias = Callable[[int, int], None]
Weights: TypeAlias = list[tuple[str, mx.array]]

# GGUF's tensor names as mlx-lm's, `N` the layer.
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.N.attn_norm": "model.layers.N.input_layernorm",
    "blk.N.attn_q": "model.layers.N.self_attn.q_proj",
    "blk.N.attn_k": "model.layers.N.self_attn.k_proj",
    "blk.N.attn_v": "model.layers.N.self_attn.v_proj",
    "blk.N.attn_output": "model.layers.N.self_attn.o_proj",
    "blk.N.attn_q_norm": "model.layers.N.self_attn.q_norm",
    "blk.N.attn_k_norm": "model.layers.N.self_attn.k_norm",
    "blk.N.ffn_norm": "model.layers.N.post_attention_layernorm",
    "blk.N.ffn_gate": "model.layers.N.mlp.gate_proj",
    "blk.N.ffn_up": "model.layers.N.mlp.up_proj",
    "blk.N.ffn_down": "model.layers.N.mlp.down_proj",
}
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
# What mlx computes with as it is packed, in groups of 32, and the bits of each.
_PACKED = {
    GGMLQuantizationType.Q4_0: 4,
    GGMLQuantizationType.Q4_1: 4,
    GGMLQuantizationType.Q8_0: 8,
}
_PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
_GROUP_SIZE = 32


class FactoredRope(nn.Module):  # type: ignore[misc]  # no types are published
    """Rotary positions whose frequencies are divided by a factor each, as llama 3.1's long context has them."""

    def __init__(self, base: float, factors: mx.array) -> None:
        super().__init__()
        self._dims = 2 * factors.size
        self._freqs = base ** (mx.arange(0, self._dims, 2, dtype=mx.float32) / self._dims) * factors

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        return mx.fast.rope(
            x,
            self._dims,
            traditional=False,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )


def configuration(file: GgufFile) -> dict[str, Any]:
    """mlx-lm's configuration of the model in `file`. Raises LoadFailed for what is not supported."""
    kind = str(file.need("general.architecture"))
    if kind not in _ARCHITECTURES:
        raise LoadFailed(
            f"{file.path} holds the architecture {kind}; of GGUF files, {', '.join(_ARCHITECTURES)} are read. "
            "Serve the model from a folder in mlx-lm's format instead"
        )
    if file.metadata.get(f"{kind}.expert_count"):
        raise LoadFailed(f"{file.path} is a mixture of experts, which is not read from GGUF files")
    if "token_embd.weight" not in file.tensors:
        raise LoadFailed(f"{file.path} lacks the tensor token_embd.weight")
    heads = file.integer(f"{kind}.attention.head_count")
    width = file.integer(f"{kind}.embedding_length")
    kv_heads = file.integer(f"{kind}.attention.head_count_kv", heads)
    if min(heads, width, kv_heads) < 1 or heads % kv_heads:
        raise LoadFailed(f"{file.path} has {heads} heads over {kv_heads} key/value heads, which cannot be")
    head_dim = file.integer(f"{kind}.attention.key_length", width // heads)
    return {
        "model_type": kind,
        "hidden_size": width,
        "num_hidden_layers": file.integer(f"{kind}.block_count"),
        "intermediate_size": file.integer(f"{kind}.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": file.number(f"{kind}.attention.layer_norm_rms_epsilon"),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": file.integer(f"{kind}.context_length"),
        "rope_theta": file.number(f"{kind}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, kind, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _rope_scaling(file: GgufFile, kind: str, head_dim: int) -> dict[str, Any] | None:
    rotated = file.integer(f"{kind}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise LoadFailed(f"{file.path} rotates {rotated} of {head_dim} head dimensions, which is not supported")
    scaling = file.metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling == "none":
        return None
    if scaling == "linear":
        return {
            "type": "linear",
            "factor": file.number(f"{kind}.rope.scaling.factor"),
        }
    raise LoadFailed(f"{file.path} scales its rotary positions by {scaling}, which is not supported")


def stays_packed(file: GgufFile) -> bool:
    """Whether mlx can compute with every tensor of the file in the type that it has."""
    return all(tensor.kind in _PACKED or tensor.kind in _PLAIN for tensor in file.tensors.values())


def build(
    file: GgufFile,
    config: dict[str, Any],
    *,
    dtype: mx.Dtype,
    progress: Progress | None = None,
) -> Any:
    """The mlx-lm model with the file's weights dequantized to `dtype`, evaluated."""
    model, names = _empty(file, config)
    weights: Weights = []
    done, total = 0, sum(file.tensors[name].bytes for name in names)
    for name, parameter in names.items():
        weights.append(
            (
                parameter,
                mx.array(_as_mlx(config, name, file.float32(name))).astype(dtype),
            )
        )
        mx.eval(weights[-1][1])
        done += file.tensors[name].bytes
        if progress is not None:
            progress(done, total)
    return _filled(file, config, model, weights)


def build_packed(file: GgufFile, config: dict[str, Any], *, dtype: mx.Dtype) -> Any:
    """The mlx-lm model with the file's quantized weights as they are and the others as `dtype`; see `stays_packed`."""
    model, names = _empty(file, config)
    bits = {names[name].rpartition(".")[0]: _PACKED.get(file.tensors[name].kind) for name in names}
    layers: Any = nn
    layers.quantize(
        model,
        group_size=_GROUP_SIZE,
        class_predicate=lambda path, _: {"group_size": _GROUP_SIZE, "bits": bits[path]} if bits.get(path) else False,
    )
    arrays: Any = mx.load(str(file.path), format="gguf")
    weights = [(_parameter_name(name), _as_mlx(config, name, value)) for name, value in arrays.items()]
    model = _filled(
        file,
        config,
        model,
        [pair for pair in weights if not pair[0].startswith("rope_freqs.")],
    )
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


def _empty(file: GgufFile, config: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The model before its weights, and for each of the file's tensors the parameter that it fills."""
    from mlx_lm.utils import _get_classes

    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    names = {name: _parameter_name(name) for name in file.tensors if name != "rope_freqs.weight"}
    _check_complete(file, model, names)
    return model, names


def _filled(file: GgufFile, config: dict[str, Any], model: Any, weights: Weights) -> Any:
    model.eval()
    model.load_weights(weights, strict=True)
    _set_rope_factors(file, config, model)
    return model


def _parameter_name(name: str) -> str:
    """mlx-lm's name of a tensor, or the name itself if it is not known."""
    stem, _, last = name.rpartition(".")
    layer = re.match(r"blk\.(\d+)\.", stem)
    number = layer.group(1) if layer else ""
    known = _NAMES.get(re.sub(r"^blk\.\d+\.", "blk.N.", stem))
    return f"{known.replace('N', number)}.{last}" if known else name


def _check_complete(file: GgufFile, model: Any, names: dict[str, str]) -> None:
    """Every parameter of the model has its tensor, in the right shape, and no tensor is left over."""
    wanted = {name: tuple(value.shape) for name, value in _parameters(model)}
    missing = sorted(wanted.keys() - names.values())
    if missing:
        raise LoadFailed(f"{file.path} lacks the weights of {_some(missing)}")
    extra = sorted(name for name, parameter in names.items() if parameter not in wanted)
    if extra:
        raise LoadFailed(f"{file.path} has tensors that its architecture does not know: {_some(extra)}")
    for name, parameter in names.items():
        if file.tensors[name].shape != wanted[parameter]:
            raise LoadFailed(
                f"{file.path}: tensor {name} has shape {file.tensors[name].shape}, not {wanted[parameter]}"
            )


def _parameters(model: Any) -> Weights:
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(model.parameters())
    return list(flat)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _as_mlx(config: dict[str, Any], name: str, values: Any) -> Any:
    """llama.cpp interleaves the two halves of each rotated head of a llama; mlx-lm wants them one after the other."""
    if config["model_type"] != "llama":
        return values
    if ".attn_q." in name:
        return halves_apart(values, config["num_attention_heads"])
    if ".attn_k." in name:
        return halves_apart(values, config["num_key_value_heads"])
    return values


def halves_apart(rows: Any, heads: int) -> Any:
    """Reorder the rows of each head from (pair, half) to (half, pair); numpy's arrays or mlx's."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])  # (heads, pairs, 2, ...)
    return split.swapaxes(1, 2).reshape(rows.shape)


def _set_rope_factors(file: GgufFile, config: dict[str, Any], model: Any) -> None:
    if "rope_freqs.weight" not in file.tensors:
        return
    factors = mx.array(file.float32("rope_freqs.weight"))
    if 2 * factors.size != config["head_dim"] or config["rope_scaling"] is not None:
        raise LoadFailed(f"{file.path}: its rope_freqs tensor does not fit its other rotary settings")
    for layer in model.layers:
        layer.self_attn.rope = FactoredRope(config["rope_theta"], factors)

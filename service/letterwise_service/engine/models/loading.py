"""From a model's name to a model in memory: the demo, a folder, a GGUF file or a hub id.

Runs on the engine thread. On a processor every weight becomes float32, since only those products use the BLAS;
on Metal and CUDA the file's types are kept. Whatever cannot be loaded is one LoadFailed sentence.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import LoadFailed
from ..backend import mx, open_backend
from ..memory import available_bytes
from . import embedded
from .checkpoint import Checkpoint, identity, read_checkpoint
from .gguf import GgufFile
from .gguf_model import build, build_packed, configuration, stays_packed
from .gguf_tokenizer import tokenizer_of

Progress: TypeAlias = Callable[[int, int], None]

DEMO = "demo"
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
_UNKNOWN_CONTEXT_TOKENS = 4096
_WORKING_BYTES = 256 * 2**20  # what the interpreter, the tokenizer and one forward take beside the weights

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to compute, all parameters evaluated on the loading thread.

    `name` is what it is served under; `names` is every name it goes by, which the prompt style is chosen from.
    `identity` names these exact weights. `dtype` is that of the weights as computed with.
    """

    model: Any  # an mlx-lm model: mlx.nn.Module
    tokenizer: Any  # mlx_lm.tokenizer_utils.TokenizerWrapper
    config: dict[str, Any]
    name: str
    names: tuple[str, ...]
    architecture: str
    context_tokens: int
    dtype: str
    parameters: int
    weights_bytes: int
    identity: str


def load(
    model: str,
    *,
    alias: str | None = None,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load `model`: "demo", a folder, a .gguf file or a hub id. Call on the engine thread.

    `memory_bytes` bounds the weights; by default it is what the machine or container has free. `progress` is told
    (bytes done, bytes in all) while the demo is fetched or a GGUF file read. Raises LoadFailed.
    """
    path = _locate(model, progress)
    parts = _load_folder(path, memory_bytes) if path.is_dir() else _load_gguf(path, memory_bytes, progress)
    return _described(parts, model, path, alias)


def _locate(model: str, progress: Progress | None) -> Path:
    if model == DEMO:
        return embedded.fetch(progress)
    path = Path(model).expanduser()
    if model and path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise LoadFailed(f"{model} is neither a model folder nor a .gguf file")
        return path
    if path.suffix.lower() == ".gguf" or not _HUB_ID.fullmatch(model):
        raise LoadFailed(f'{model} is not there: give "demo", a model folder, a .gguf file or a hub id (owner/name)')
    return _from_hub(model)


def _from_hub(model: str) -> Path:
    from mlx_lm.utils import _download

    try:
        return _download(model)
    except Exception as error:
        raise LoadFailed(
            f"{model} is no folder here, and could not be fetched from the hub ({_first_line(error)}). "
            "With no network, give a model folder or a .gguf file by its path"
        ) from error


@dataclass(frozen=True)
class _Parts:
    model: Any
    tokenizer: Any
    config: dict[str, Any]
    identity: str


def _load_gguf(path: Path, memory_bytes: int | None, progress: Progress | None) -> _Parts:
    file = GgufFile(path)
    config = configuration(file)
    dtype = mx.float32 if open_backend().computes_float32 else mx.float16
    packed = dtype != mx.float32 and stays_packed(file)
    _check_fits(path, file.tensor_bytes if packed else file.values * dtype.size, memory_bytes)
    tokenizer = _with_template(tokenizer_of(file), path)
    if len(tokenizer) > config["vocab_size"]:
        raise LoadFailed(f"{path} has {len(tokenizer)} tokens and only {config['vocab_size']} embedding rows")
    weights = build_packed(file, config, dtype=dtype) if packed else build(file, config, dtype=dtype, progress=progress)
    return _Parts(weights, tokenizer, config, identity([path]))


def _load_folder(folder: Path, memory_bytes: int | None) -> _Parts:
    checkpoint = read_checkpoint(folder)
    widened = open_backend().computes_float32
    _check_fits(
        folder,
        checkpoint.float32_bytes() if widened else checkpoint.file_bytes,
        memory_bytes,
    )
    tokenizer = _with_template(_folder_tokenizer(checkpoint), folder)
    weights, config = _folder_weights(checkpoint)
    if widened:
        weights = _as_float32(weights)
    mx.eval(weights.parameters())
    named = json.dumps(checkpoint.config, sort_keys=True).encode()
    return _Parts(weights, tokenizer, config, identity(checkpoint.files, named))


def _folder_tokenizer(checkpoint: Checkpoint) -> Any:
    from mlx_lm.utils import load_config
    from mlx_lm.utils import load_tokenizer as untyped

    load_tokenizer: Any = untyped
    try:
        ends = load_config(checkpoint.folder).get("eos_token_id")
        return load_tokenizer(checkpoint.folder, {"trust_remote_code": False}, eos_token_ids=ends)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise LoadFailed(f"{checkpoint.folder} brings its own tokenizer code, which is never run") from error
        raise LoadFailed(f"{checkpoint.folder}: its tokenizer cannot be loaded ({_first_line(error)})") from error


def _folder_weights(checkpoint: Checkpoint) -> tuple[Any, dict[str, Any]]:
    from mlx_lm.utils import load_model

    try:
        return load_model(checkpoint.folder, lazy=True)
    except Exception as error:
        kind = checkpoint.config["model_type"]
        if f"Model type {kind} not supported" in str(error):
            raise LoadFailed(f"{checkpoint.folder}: mlx-lm does not know the architecture {kind}") from error
        raise LoadFailed(f"{checkpoint.folder}: its weights cannot be loaded ({_first_line(error)})") from error


def _as_float32(model: Any) -> Any:
    """Widen the scales first: dequantizing gives the scales' type, and a narrow one would round every weight."""
    from mlx_lm.utils import dequantize_model

    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    return model


def _with_template(tokenizer: Any, path: Path) -> Any:
    if not tokenizer.has_chat_template:
        raise LoadFailed(f"{path} has no chat template; a decision's prompt is a chat turn, so serve a chat model")
    return tokenizer


def _check_fits(path: Path, needed_bytes: int, memory_bytes: int | None) -> None:
    """Refuse before reading, with the numbers, what would not fit."""
    room = memory_bytes if memory_bytes is not None else available_bytes()
    if room is not None and needed_bytes + _WORKING_BYTES > room:
        raise LoadFailed(
            f"{path} needs {_gib(needed_bytes)} for its weights and {_gib(_WORKING_BYTES)} to work in; "
            f"{_gib(room)} is available"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _described(parts: _Parts, model: str, path: Path, alias: str | None) -> LoadedModel:
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(parts.model.parameters())
    values: list[mx.array] = [value for _, value in flat]
    own = path.stem if model == DEMO or path.suffix == ".gguf" else (path.name if path == Path(model) else model)
    names = dict.fromkeys([model, str(path), own, *([alias] if alias else [])])
    return LoadedModel(
        model=parts.model,
        tokenizer=parts.tokenizer,
        config=parts.config,
        name=(alias or own).encode("utf-8", "replace").decode(),  # a path may hold bytes that are no text
        names=tuple(names),
        architecture=str(parts.config["model_type"]),
        context_tokens=_context_tokens(parts.config, parts.tokenizer),
        dtype=_dtype(values),
        parameters=sum(value.size for value in values),
        weights_bytes=sum(value.nbytes for value in values),
        identity=parts.identity,
    )


def _context_tokens(config: dict[str, Any], tokenizer: Any) -> int:
    """The model's own context; a multimodal configuration has it under `text_config`."""
    text = config.get("text_config")
    for settings in (text if isinstance(text, dict) else {}, config):
        for key in _CONTEXT_KEYS:
            if isinstance(settings.get(key), int):
                return int(settings[key])
    length = getattr(tokenizer, "model_max_length", None)
    if isinstance(length, int) and length < 10**9:
        return length
    _log.warning(
        "the model does not say how long its context is; %d tokens are assumed",
        _UNKNOWN_CONTEXT_TOKENS,
    )
    return _UNKNOWN_CONTEXT_TOKENS


def _dtype(values: list[mx.array]) -> str:
    """The type of the largest floating array, or of the largest array where all are packed."""
    floating = [value for value in values if mx.issubdtype(value.dtype, mx.floating)] or values
    return str(max(floating, key=lambda value: value.size).dtype).removeprefix("mlx.core.")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]

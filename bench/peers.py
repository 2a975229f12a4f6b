"""The peers' own environments and their forms of the embedded model, made once in the user's cache.

Packages come by name from the registry that pip is set up with. What cannot be had is a Missing with its reason, and
the bench goes on without that peer. Knows nothing of cases or clocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from letterwise_service.engine.models import embedded

from .contenders import Entry, Missing, without_folders

LLAMA = ("llama-cpp-python==0.3.36",)
TORCH = ("torch==2.13.0", "transformers>=5,<6", "safetensors", "numpy")


def entries() -> dict[str, Callable[[], Entry]]:
    """Every contender of the decisions table by name; calling one makes what it needs. Raises Missing."""
    own = Path(sys.executable)
    stock = {"OPENBLAS_NUM_THREADS": "2", "MLX_BFS_MAX_WIDTH": "20"}  # the second is mlx's default
    return {
        "ours": lambda: Entry("ours", own, "letterwise_engine"),
        "naive": lambda: Entry("naive", own, "mlx_lm_peer", ("naive",), stock),
        "stock_prefix": lambda: Entry("stock_prefix", own, "mlx_lm_peer", ("prefix",), stock),
        "llama": lambda: Entry("llama", _environment("llama", LLAMA), "llama_peer", (str(embedded.fetch()),)),
        "llama_float32": lambda: Entry(
            "llama_float32", _environment("llama", LLAMA), "llama_peer", (str(float32_gguf()),)
        ),
        "torch_float32": lambda: _torch("float32"),
        "torch_bfloat16": lambda: _torch("bfloat16"),
    }


def _torch(dtype: str) -> Entry:
    return Entry(f"torch_{dtype}", _environment("torch", TORCH), "torch_peer", (str(float32_folder()), dtype))


def folder() -> Path:
    """Where the bench keeps what it made."""
    place = embedded.cache_folder() / "bench"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _environment(name: str, packages: tuple[str, ...]) -> Path:
    """The interpreter of an environment that has `packages`. Raises Missing."""
    place = folder() / name
    python, stamp = place / "bin" / "python", place / "installed.json"
    if stamp.exists() and json.loads(stamp.read_text()) == list(packages):
        return python
    print(f"making the environment of {name}: {', '.join(packages)} …", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", *packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            raise Missing(f"its environment could not be made: {without_folders(lines[-1])}")
    stamp.write_text(json.dumps(list(packages)))
    return python


def float32_folder() -> Path:
    """The embedded model in the Hugging Face layout, float32 as our loader gives it."""
    place = folder() / "smollm2-float32"
    if not (place / "config.json").exists():
        _apart(_write_folder, place)
    return place


def float32_gguf() -> Path:
    """The embedded model's GGUF file with every tensor dequantized."""
    place = folder() / "smollm2-float32.gguf"
    if not place.exists():
        _apart(_write_gguf, place)
    return place


def _apart(write: Callable[[Path], None], place: Path) -> None:
    """Write in a process of its own: the driver holds no model. Raises Missing."""
    code = f"from pathlib import Path; from bench import peers; peers.{write.__name__}(Path({str(place)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise Missing(f"the model could not be converted: {without_folders(lines[-1])}")


def _write_folder(place: Path) -> None:
    from mlx.utils import tree_flatten

    from letterwise_service.engine.backend import mx, open_backend
    from letterwise_service.engine.models.loading import DEMO, load

    open_backend(1)
    loaded = load(DEMO)
    place.mkdir(parents=True, exist_ok=True)
    flat: Any = tree_flatten(loaded.model.parameters())
    mx.save_safetensors(str(place / "model.safetensors"), dict(flat), metadata={"format": "pt"})
    config = {**loaded.config, "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
    (place / "config.json").write_text(json.dumps(config))


def _write_gguf(place: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(embedded.fetch())
    part = place.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            value = 0 if field.name == "general.file_type" else field.contents()  # 0: all float32
            writer.add_key_value(field.name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(place)

"""Loading by name: folders in mlx-lm's format, GGUF files, the demo; and every way in which it can fail."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from letterwise_service.engine import memory
from letterwise_service.engine.backend import mx, nn
from letterwise_service.engine.models.checkpoint import read_checkpoint
from letterwise_service.engine.models.loading import load
from letterwise_service.errors import LoadFailed
from tests import tiny
from tests.engine.models.gguf_files import tiny_gguf
from tests.tiny import tiny_config


def parameters(model: Any) -> dict[str, mx.array]:
    """A model's parameters by name."""
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(model.parameters())
    return dict(flat)


def tiny_model(architecture: str) -> Any:
    """The same random model each time."""
    mx.random.seed(7)
    return tiny.tiny_model(architecture)


def tiny_folder(folder: Path, architecture: str = "llama", **config: Any) -> Path:
    """A folder of that model."""
    mx.random.seed(7)
    return tiny.tiny_folder(folder, architecture, **config)


def quantized_folder(folder: Path, *, bits: int = 4, group_size: int = 32) -> Path:
    """A tiny model with bfloat16 scales, as mlx-community's models are."""
    tiny_folder(folder, quantization={"bits": bits, "group_size": group_size})
    model = tiny_model("llama")
    model.set_dtype(mx.bfloat16)
    layers: Any = nn
    layers.quantize(model, group_size=group_size, bits=bits)
    mx.save_safetensors(str(folder / "model.safetensors"), parameters(model))
    return folder


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text", "qwen3_5"])
def test_load_folder_gives_the_model_that_was_saved(tmp_path: Path, architecture: str) -> None:
    """The loaded model's logits are those of the saved one, bit for bit."""
    loaded = load(str(tiny_folder(tmp_path / "m", architecture)))
    ids = mx.array([[3, 77, 200, 5]])
    assert mx.array_equal(loaded.model(ids), tiny_model(architecture)(ids))
    assert loaded.dtype == "float32"
    assert loaded.architecture == architecture


def test_load_folder_describes_the_model(tmp_path: Path) -> None:
    """Names, context, counts and tokenizer come from the folder; an alias is what it is served under."""
    folder = tiny_folder(tmp_path / "OpenJev-tiny", max_position_embeddings=2048)
    loaded = load(str(folder), alias="judge")
    values = parameters(tiny_model("llama")).values()
    assert loaded.name == "judge"
    assert {str(folder), "OpenJev-tiny", "judge"} <= set(loaded.names)
    assert load(str(folder)).name == "OpenJev-tiny"
    assert loaded.context_tokens == 2048
    assert loaded.parameters == sum(value.size for value in values)
    assert loaded.weights_bytes == 4 * loaded.parameters
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("naïve 🙂")) == "naïve 🙂"


@pytest.mark.skipif(sys.platform == "darwin", reason="on Metal the file's types are kept")
def test_load_on_the_processor_widens_narrow_weights_without_rounding(tmp_path: Path) -> None:
    """bfloat16 weights become the same numbers in float32."""
    folder = tiny_folder(tmp_path / "m")
    narrow = tiny_model("llama")
    narrow.set_dtype(mx.bfloat16)
    mx.save_safetensors(str(folder / "model.safetensors"), parameters(narrow))
    loaded = load(str(folder))
    for (name, wide), value in zip(parameters(loaded.model).items(), parameters(narrow).values(), strict=True):
        assert wide.dtype == mx.float32
        assert mx.array_equal(wide, value.astype(mx.float32)), name


@pytest.mark.skipif(sys.platform == "darwin", reason="on Metal the file's types are kept")
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64), (6, 64)])
def test_load_on_the_processor_dequantizes_in_float32(tmp_path: Path, bits: int, group_size: int) -> None:
    """Each weight is its packed number times scale plus bias in float32, not rounded to the scales' type."""
    folder = quantized_folder(tmp_path / "m", bits=bits, group_size=group_size)
    packed: Any = mx.load(str(folder / "model.safetensors"))
    loaded = load(str(folder))
    for name in ("model.embed_tokens", "model.layers.2.mlp.down_proj", "model.layers.0.self_attn.q_proj"):
        scales, biases = (packed[f"{name}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
        wanted = mx.dequantize(packed[f"{name}.weight"], scales, biases, group_size, bits)
        assert mx.array_equal(parameters(loaded.model)[f"{name}.weight"], wanted)
    assert loaded.weights_bytes == read_checkpoint(folder).float32_bytes() == 4 * loaded.parameters


def test_load_gguf_file_computes_and_is_named_for_the_file(tmp_path: Path) -> None:
    """A .gguf path gives a model that computes, and reports its reading as it goes."""
    path = tiny_gguf(tmp_path / "Tiny-Judge.gguf", kind=Kind.Q5_0)
    seen: list[tuple[int, int]] = []
    loaded = load(str(path), progress=lambda done, total: seen.append((done, total)))
    assert loaded.name == "Tiny-Judge"
    assert loaded.context_tokens == 512
    assert np.isfinite(np.array(loaded.model(mx.array([[1, 2, 3]])).astype(mx.float32))).all()
    if loaded.dtype == "float32":
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]


@pytest.mark.live
def test_load_demo_is_the_embedded_model() -> None:
    """ "demo" is SmolLM2-135M with its own context."""
    loaded = load("demo")
    assert (loaded.architecture, loaded.context_tokens, loaded.parameters) == ("llama", 8192, 134_515_008)
    assert "demo" in loaded.names


def test_load_identity_is_stable_and_follows_the_weights(tmp_path: Path) -> None:
    """The same files give the same identity anywhere; other weights or another configuration give another."""
    first, second = tiny_folder(tmp_path / "a"), tiny_folder(tmp_path / "b")
    assert load(str(first)).identity == load(str(second)).identity
    changed = bytearray((second / "model.safetensors").read_bytes())
    changed[-4] ^= 1
    (second / "model.safetensors").write_bytes(changed)
    assert load(str(first)).identity != load(str(second)).identity
    assert load(str(first)).identity != load(str(tiny_folder(tmp_path / "c", rope_theta=20000.0))).identity
    one, other = (tiny_gguf(tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    assert load(str(one)).identity != load(str(other)).identity


def _edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = {**tiny_config("llama"), **changes}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return edit


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1000)


def _drop_a_tensor(folder: Path) -> None:
    weights: Any = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(list(weights.items())[1:]))


def _no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _own_tokenizer_code(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"x")
    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "own.py").write_text("raise SystemExit('this must never run')")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_remove("config.json"), "config.json cannot be read"),
        (_write("config.json", b"{not json"), "is not valid JSON"),
        (_write("config.json", b"[1]"), "does not name a model_type"),
        (_edit_config(model_type=None), "does not name a model_type"),
        (_edit_config(model_type="from_the_future"), "does not know the architecture from_the_future"),
        (_edit_config(model_file="own.py"), "brings its own model code"),
        (_edit_config(hidden_size=None), "hidden_size"),
        (_edit_config(hidden_size=128), "weights cannot be loaded"),
        (_remove("model.safetensors"), "has no weights"),
        (_cut_weights, "is cut short: 1,000 bytes"),
        (_write("model.safetensors", b""), "not a safetensors file"),
        (_write("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"), "cut short or not a safetensors"),
        (_write("model.safetensors", struct.pack("<Q", 4) + b'{"a"'), "not a safetensors file"),
        (_drop_a_tensor, "weights cannot be loaded"),
        (_remove("tokenizer.json"), "has no tokenizer"),
        (_write("tokenizer.json", b"{"), "tokenizer cannot be loaded"),
        (_own_tokenizer_code, "brings its own tokenizer code"),
        (_no_template, "no chat template"),
    ],
)
def test_load_of_a_broken_folder_is_one_sentence(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    """Each fault of a folder is named in one line, and nothing of the model's own code runs."""
    folder = tiny_folder(tmp_path / "m")
    spoil(folder)
    with pytest.raises(LoadFailed) as caught:
        load(str(folder))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_load_of_a_gguf_without_template_or_rows_says_so(tmp_path: Path) -> None:
    """A GGUF without a chat template cannot be served."""
    with pytest.raises(LoadFailed, match="no chat template"):
        load(str(tiny_gguf(tmp_path / "m.gguf", template=None)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/no/such/folder", "is not there"),
        ("missing.gguf", "is not there"),
        ("models/missing.gguf", "is not there"),
        ("", "is not there"),
        ("just-a-word", "is not there"),
        (__file__, "neither a model folder nor a .gguf file"),
    ],
)
def test_load_of_no_model_says_what_may_be_given(name: str, said: str) -> None:
    """A name that is no model is refused without asking any network."""
    with pytest.raises(LoadFailed, match=said):
        load(name)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE=1", "HF_ENDPOINT=http://127.0.0.1:9"])
def test_load_of_a_hub_id_without_network_says_so(tmp_path: Path, variable: str) -> None:
    """With no hub to reach, the error says that it could not be fetched and what to do."""
    script = (
        "from letterwise_service.engine.models.loading import load\nfrom letterwise_service.errors import LoadFailed\n"
        "try: load('nobody/nothing-here')\nexcept LoadFailed as error: print(error)"
    )
    key, _, value = variable.partition("=")
    environment = {**os.environ, key: value, "HF_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("nobody/nothing-here is no folder here, and could not be fetched from the hub")
    assert said.stdout.rstrip().endswith("give a model folder or a .gguf file by its path")
    assert said.stdout.count("\n") == 1


@pytest.mark.parametrize("quantized", [False, True])
def test_load_refuses_before_reading_what_does_not_fit(tmp_path: Path, quantized: bool) -> None:
    """A model larger than the memory is refused with both numbers in GiB."""
    folder = quantized_folder(tmp_path / "m") if quantized else tiny_folder(tmp_path / "m")
    with pytest.raises(LoadFailed, match=r"needs 0\.00 GiB for its weights and 0\.25 GiB .* 0\.10 GiB is available"):
        load(str(folder), memory_bytes=100 * 2**20)
    with pytest.raises(LoadFailed, match="is available"):
        load(str(tiny_gguf(tmp_path / "m.gguf")), memory_bytes=100 * 2**20)
    assert load(str(folder), memory_bytes=300 * 2**20).parameters > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_available_is_within_the_machines() -> None:
    """What is free is positive and less than the machine has."""
    free = memory.available_bytes()
    assert free is not None
    assert 0 < free < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 5\ninactive_file 100\n"}, 400),
        ({"memory.max": "max\n", "memory.current": "700\n"}, None),
        ({"memory/memory.limit_in_bytes": "500\n", "memory/memory.usage_in_bytes": "200\n"}, 300),
        ({}, None),
    ],
)
def test_memory_of_a_control_group_is_its_limit_less_what_is_used(
    tmp_path: Path, files: dict[str, str], wanted: int | None
) -> None:
    """Both layouts are read; pages of files that can be dropped count as free; no limit is no answer."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert memory._cgroup_bytes(tmp_path) == wanted


def test_memory_of_nested_control_groups_is_the_least_of_theirs(tmp_path: Path) -> None:
    """The process's own group, whichever layout it is in, and each around it."""
    own = tmp_path / "own"
    for listing, folder in (("0::/outer/inner\n", ""), ("3:cpu:/other\n7:memory:/outer/inner\n", "memory/")):
        own.write_text(listing)
        root = tmp_path / (folder or "v2")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if folder else ("memory.max", "memory.current")
        for group, limit in (("outer", 900), ("outer/inner", 2000)):
            (root / folder / group).mkdir(parents=True)
            for name, amount in zip(names, (limit, 500), strict=True):
                (root / folder / group / name).write_text(f"{amount}\n")
        assert memory._groups_bytes(root, own) == 400
    own.write_text("0::/../elsewhere\n")
    assert memory._groups_bytes(tmp_path / "v2", own) is None
    assert memory._groups_bytes(tmp_path / "v2", tmp_path / "none") is None

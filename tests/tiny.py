"""Tiny random models of mlx-lm's own classes, and a byte tokenizer with a chat template: real parts, small sizes.

Import only from tests that run MLX, on one thread.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from letterwise_service.engine.backend import mx, nn  # isort: skip - before anything of mlx

from mlx.utils import tree_flatten, tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 272

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    "qwen3": {
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
    },
    "gemma3_text": {
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "head_dim": 16,
        "sliding_window": 40,
        "sliding_window_pattern": 2,
    },
    "qwen3_5": {
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-6,
            "head_dim": 16,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 2,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        }
    },
}
_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
}


def tiny_config(architecture: str) -> dict[str, Any]:
    own = ARCHITECTURES[architecture]
    return {"model_type": architecture, **({} if "text_config" in own else _COMMON), **own}


def tiny_model(architecture: str, seed: int = 7) -> nn.Module:
    """A random float32 model of one of mlx-lm's architectures, with weights large enough to tell prompts apart."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(tiny_config(architecture)))
    scale = {name: 3.0 if "embed" not in name else 1.0 for name, _ in tree_flatten(model.parameters())}
    model.update(tree_map(lambda a: a.astype(mx.float32), model.parameters()))
    model.load_weights(
        [(n, a + 0.0 if a.ndim < 2 else a * scale[n]) for n, a in tree_flatten(model.parameters())], strict=False
    )
    model.eval()
    mx.eval(model.parameters())
    return model


def byte_tokenizer(template: str = CHATML, specials: tuple[str, ...] = SPECIALS) -> TokenizerWrapper:
    """One token per byte, and the special tokens that the template writes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=specials[-1])
    fast.chat_template = template
    return TokenizerWrapper(fast)


def tiny_folder(folder: Path, architecture: str = "llama", template: str = CHATML, **config: Any) -> Path:
    """A model folder in mlx-lm's format."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(architecture)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps({**tiny_config(architecture), **config}))
    byte_tokenizer(template)._tokenizer.save_pretrained(str(folder))
    return folder


def full_scores(model: Any, ids: list[int], letter_ids: tuple[int, ...]) -> list[float]:
    """Letter scores of one plain forward over the whole prompt: the judge."""
    logits = model(mx.array([ids]))[0, -1].astype(mx.float32)
    return list(logits[mx.array(letter_ids)].tolist())

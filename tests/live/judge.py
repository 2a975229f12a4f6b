"""The judge: the embedded model read by stock mlx-lm, one plain forward over a whole prompt. Run as a process.

Nothing of the engine computes here: the weights are unpacked by `gguf` into mlx-lm's own Llama, the prompt is mlx-lm's
own chat template, and mlx's kernels are as they come. Only the BLAS is put in place as the engine does it, since the
reference one would take a minute for a prompt. Reads a JSON object per line, `{"message": …}` or `{"ids": […]}`, and
answers each with a line: the ids, the 52 letter scores and log Σ exp over the vocabulary. With `"continued": true` the
prompt goes on from the last continued one in mlx-lm's own prompt cache, trimmed to what they share.
"""

from __future__ import annotations

import json
import os
import string
import sys
from pathlib import Path
from typing import Any

import letterwise_service.engine  # noqa: F401  # isort: skip - the BLAS, before mlx

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, dequantize
from mlx_lm.models import cache, llama

from letterwise_service.engine.models.gguf import GgufFile
from letterwise_service.engine.models.gguf_tokenizer import tokenizer_of

LETTERS = string.ascii_uppercase + string.ascii_lowercase
# A prompt of more than LONG_TOKENS is read as mlx-lm itself reads long ones, in chunks through its own cache: stock
# attention over 6,000 tokens at once would take minutes and gigabytes.
LONG_TOKENS = 1024
CHUNK_TOKENS = 512
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_model(path: Path) -> Any:
    """mlx-lm's Llama with the file's weights in float32."""
    reader = GGUFReader(path)

    def told(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads = {"attn_q": told("attention.head_count"), "attn_k": told("attention.head_count_kv")}
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=told("embedding_length"),
            num_hidden_layers=told("block_count"),
            intermediate_size=told("feed_forward_length"),
            num_attention_heads=heads["attn_q"],
            num_key_value_heads=heads["attn_k"],
            rms_norm_eps=told("attention.layer_norm_rms_epsilon"),
            vocab_size=told("vocab_size"),
            rope_theta=told("rope.freq_base"),
            tie_word_embeddings=True,
        )
    )
    model.load_weights([weight(tensor, heads) for tensor in reader.tensors])
    mx.eval(model.parameters())
    return model


def weight(tensor: Any, heads: dict[str, int]) -> tuple[str, Any]:
    """One tensor under mlx-lm's name; the rows of q and k are back in the order that llama.cpp changed."""
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    *place, last = tensor.name.removesuffix(".weight").split(".")
    if last in heads:
        values = values.reshape(heads[last], -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    layer = f"model.layers.{place[1]}." if place else ""
    return f"{layer}{NAMES[last]}.weight", mx.array(values)


class Reading:
    """Prompts through the model: whole, or continued from the last one."""

    def __init__(self, model: Any, letters: list[int]) -> None:
        self._model = model
        self._letters = letters
        self._kept: list[int] = []
        self._cache = cache.make_prompt_cache(model)

    def whole(self, ids: list[int]) -> tuple[list[float], float]:
        """Letter scores at the last position, and log Σ exp there."""
        own = cache.make_prompt_cache(self._model) if len(ids) > LONG_TOKENS else None
        return self._scores(ids, own, CHUNK_TOKENS if own else len(ids))

    def continued(self, ids: list[int]) -> tuple[list[float], float]:
        """The same, with what the last continued prompt began with taken from mlx-lm's prompt cache."""
        pairs = zip(self._kept, ids[:-1], strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self._kept), len(ids) - 1))
        cache.trim_prompt_cache(self._cache, len(self._kept) - shared)
        self._kept = ids
        return self._scores(ids[shared:], self._cache, CHUNK_TOKENS)

    def _scores(self, ids: list[int], own: Any, step: int) -> tuple[list[float], float]:
        for start in range(0, len(ids), step):
            hidden = self._model.model(mx.array([ids[start : start + step]]), cache=own)
            mx.eval(hidden)
        logits = self._model.model.embed_tokens.as_linear(hidden[:, -1:])[0, -1]
        return logits[mx.array(self._letters)].tolist(), mx.logsumexp(logits).item()


def main(path: Path) -> None:
    """Answers lines until standard input ends."""
    assert type(mx.fast.scaled_dot_product_attention).__module__ == "nanobind", "the attention is not mlx's own"
    os.nice(10)  # what the tests time goes first
    tokenizer = tokenizer_of(GgufFile(path))
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in LETTERS]
    reading = Reading(load_model(path), letters)
    for line in sys.stdin:
        asked = json.loads(line)
        message = [{"role": "user", "content": asked.get("message")}]
        ids = asked.get("ids") or tokenizer.apply_chat_template(message, add_generation_prompt=True)
        found, total = (reading.continued if asked.get("continued") else reading.whole)(ids)
        print(json.dumps({"ids": ids, "letters": found, "log_total": total}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

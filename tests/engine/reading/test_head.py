"""The readout path of every kind of head, pinned, and its scores against the whole model's logits."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from letterwise_service.engine.backend import mx, nn
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.reading.head import LOGITS, ROWS, LetterHead, pick_head
from tests.engine.conftest import LETTER_IDS, random_ids, wide_model
from tests.tiny import VOCABULARY, tiny_model

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "head_dim": 16,
}


def family(architecture: str, **own: Any) -> Any:
    """A random model of another of mlx-lm's families, its weights wide enough for logits of some size."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(5)
    model = module.Model(module.ModelArgs.from_dict({"model_type": architecture, **SIZES, **own}))
    embeddings = model.model.embed_tokens
    embeddings.weight = embeddings.weight * 8
    model.eval()
    return model


def quantized(model: Any) -> Any:
    """In 4 bits, the head with the rest."""
    nn.quantize(model, group_size=32, bits=4)
    return model


def narrowed(model: Any, dtype: Any) -> Any:
    model.set_dtype(dtype)
    return model


def with_lora_head(model: Any) -> Any:
    """An adapter over the head, as training leaves it."""
    from mlx_lm.tuner.lora import LoRALinear

    model.lm_head = LoRALinear.from_base(model.lm_head, r=4)
    model.lm_head.lora_b = mx.random.normal(model.lm_head.lora_b.shape)
    model.eval()
    return model


def granite(logits_scaling: float) -> Any:
    return family(
        "granite",
        logits_scaling=logits_scaling,
        attention_multiplier=0.25,
        embedding_multiplier=1.0,
        residual_multiplier=1.0,
        max_position_embeddings=512,
        attention_bias=False,
        mlp_bias=False,
        rope_theta=1e4,
        tie_word_embeddings=True,
    )


def family_with_bias() -> Any:
    """phi's head has a bias; given one that matters."""
    model = family("phi", max_position_embeddings=512)
    model.lm_head.bias = mx.random.normal(model.lm_head.bias.shape)
    return model


CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "tied": (ROWS, lambda: tiny_model("llama")),
    "untied": (ROWS, lambda: tiny_model("qwen3")),
    "inside a multimodal shell": (ROWS, lambda: tiny_model("qwen3_5")),
    "quantized, tied": (ROWS, lambda: quantized(wide_model())),
    "quantized, untied": (ROWS, lambda: quantized(wide_model(tie_word_embeddings=False))),
    "bfloat16": (ROWS, lambda: narrowed(wide_model(), mx.bfloat16)),
    "float16": (ROWS, lambda: narrowed(wide_model(tie_word_embeddings=False), mx.float16)),
    "biased": (ROWS, family_with_bias),
    "scaled": (LOGITS, lambda: family("cohere", logit_scale=0.25)),
    "scaled by one": (ROWS, lambda: family("cohere", logit_scale=1.0)),
    "divided": (LOGITS, lambda: granite(8.0)),
    "soft-capped": (LOGITS, lambda: family("gemma2")),
    "adapted": (LOGITS, lambda: with_lora_head(wide_model(tie_word_embeddings=False))),
}
LOOSE = {"bfloat16": 3e-2, "float16": 4e-3}


@pytest.mark.parametrize("case", CASES)
def test_head_takes_the_path_that_gives_the_models_scores(case: str) -> None:
    """rows where the head is a plain product, logits where the model does more; both give the model's letters."""
    path, build = CASES[case]
    model = build()
    head = pick_head(model, LETTER_IDS, mx.array([random_ids(40)]))
    assert head.path == path
    ids = mx.array([random_ids(30, seed=i) for i in range(3)])
    letters, totals = head.scores(head.forward(model, ids, None)[:, -1])
    logits = model(ids)[:, -1].astype(mx.float32)
    tolerance = LOOSE.get(case, 2e-5) * max(1.0, mx.abs(logits).max().item())
    assert mx.abs(letters - logits[:, mx.array(LETTER_IDS)]).max().item() <= tolerance
    assert mx.abs(totals - mx.logsumexp(logits, axis=-1)).max().item() <= tolerance
    assert letters.dtype == totals.dtype == mx.float32


def test_rows_are_float32_where_the_heads_own_product_is_not() -> None:
    """A bfloat16 head rounds its scores; the rows read the same hidden state without that rounding."""
    model = narrowed(wide_model(), mx.bfloat16)
    head = pick_head(model, LETTER_IDS, mx.array([random_ids(40)]))
    last = head.forward(model, mx.array([random_ids(30)]), None)[:, -1]
    letters, _ = head.scores(last)
    weight = model.model.embed_tokens.weight.astype(mx.float32)
    right = (last.astype(mx.float32) @ weight.T)[:, mx.array(LETTER_IDS)]
    assert mx.abs(letters - right).max().item() < 1e-5
    rounded = model(mx.array([random_ids(30)]))[:, -1].astype(mx.float32)[:, mx.array(LETTER_IDS)]
    assert mx.abs(rounded - right).max().item() > 1e-4


@pytest.mark.parametrize("operations", ["stock", "processor"])
@pytest.mark.parametrize("path", [ROWS, LOGITS])
def test_scores_of_a_position_do_not_depend_on_the_others(path: str, operations: str) -> None:
    """One position alone, among sixteen, or in the last of several blocks has the same bits."""
    model = wide_model()
    if operations == "processor":
        kernels.install()
    try:
        picked = pick_head(model, LETTER_IDS, mx.array([random_ids(40)]))
        head = picked if path == ROWS else LetterHead(LOGITS, LETTER_IDS)
        last = head.forward(model, mx.array([random_ids(37)]), None)[0]
        letters, totals = head.scores(last)
        for i in (0, 1, 15, 16, 31, 36):
            one, total = head.scores(last[i : i + 1])
            assert mx.array_equal(one[0], letters[i]).item()
            assert mx.array_equal(total[0], totals[i]).item()
    finally:
        kernels.uninstall()


def test_head_of_a_model_that_gives_no_numbers_reads_the_logits() -> None:
    """Nothing can be checked where every logit is NaN: the path stays the whole model's."""
    model = wide_model()
    model.model.norm.weight = model.model.norm.weight * float("nan")
    assert pick_head(model, LETTER_IDS, mx.array([random_ids(40)])).path == LOGITS

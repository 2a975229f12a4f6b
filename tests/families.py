"""One tiny configuration for every architecture of mlx-lm that can be built in float32, windows and chunks included.

Windows and chunks are shorter than the prompts of the tests, so that what falls out of them is tried too. Import only
from tests that run MLX, on one thread.
"""

from __future__ import annotations

import importlib
from typing import Any

from letterwise_service.engine.backend import mx, nn  # isort: skip - before anything of mlx

from mlx.utils import tree_flatten

VOCABULARY = 160
WINDOW = 40
_SLIDING = ["sliding_attention", "full_attention"]
_YARN = {
    "type": "yarn",
    "factor": 2.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 512,
    "llama_4_scaling_beta": 0.1,
}

# What most families call by the same name; `from_dict` takes the names that a family knows.
USUAL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "hidden_act": "silu",
    **dict.fromkeys(["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"], 1e-5),
    **dict.fromkeys(["attention_bias", "mlp_bias", "use_bias", "bias", "conv_bias", "mamba_proj_bias"], False),
    "tie_word_embeddings": False,
    # experts
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "num_experts_per_token", "moe_topk"], 2),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"], 48),
    "moe_shared_expert_intermediate_size": 48,
    **dict.fromkeys(["num_shared_experts", "n_shared_experts", "n_group", "topk_group", "num_expert_group"], 1),
    **dict.fromkeys(["first_k_dense_replace", "num_dense_layers", "decoder_sparse_step", "moe_layer_freq"], 1),
    "zero_expert_num": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "mlp_only_layers": [],
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "zero_expert_type": "identity",
    # attention by low-rank keys and values
    "kv_lora_rank": 48,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 32,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 24,
    # recurrent and convolutional layers
    **dict.fromkeys(["linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "time_step_rank"], 4),
    **dict.fromkeys(["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"], 4),
    **dict.fromkeys(["mamba_d_head", "mamba_head_dim", "mamba_d_state", "state_size", "ssm_state_size"], 8),
    **dict.fromkeys(["mamba_n_groups", "n_groups"], 1),
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "full_attention_interval": 2,
    "conv_L_cache": 3,
    "use_conv_bias": True,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "time_step_limit": [0.001, 100.0],
    # scales
    "logits_scaling": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "final_logit_softcapping": 30.0,
    "dim_model_base": 16,
    "scale_depth": 1.4,
    "scale_emb": 1.0,
}

_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_ctx": 512}
_BAILING = {"layer_group_size": 2, "group_norm_size": 2, "num_key_value_heads": 4}
_KDA = {
    "linear_attn_config": {
        "kda_layers": [1],
        "full_attn_layers": [2],
        "num_heads": 2,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    }
}
_LONGCAT = {
    "num_layers": 2,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 48,
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_DEEPSEEK_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512, "mscale_all_dim": 1.0}
_LONGROPE = {
    "type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0] * 4,
}
_GEMMA3N = {
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "rope_local_base_freq": 10000.0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
    "hidden_size_per_layer_input": 8,
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 8,
}
_GEMMA4 = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "global_head_dim": 32,
}
_KIMI_K3 = {"hidden_act": "situ", "activation_situ_beta": 2.0, "attn_res_block_size": 2, **_KDA}
_M3_SPARSE = {
    "dense_intermediate_size": 48,
    "moe_layer_freq": [0, 1],
    "sparse_attention_config": {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 16,
        "sparse_block_size": 8,
        "sparse_topk_blocks": 4,
        "sparse_attention_freq": [0, 1],
    },
}
_LLAMA4 = {
    "attention_chunk_size": WINDOW,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 48,
    "rope_scaling": None,
}


def _inside(text: str, **own: Any) -> dict[str, Any]:
    """The configuration of a model that holds the text model `text`."""
    return {"text_config": {**USUAL, **TEXTS.get(text, {}), **own, "model_type": text}}


# What sets how fast a recurrent state forgets: lowered, so that a prefix still counts after the longest tail.
_DECAYS = ("A_log", "recurrent_param", "w_lora.lora.2.bias")

# Families that have no settings of their own.
# fmt: off
_AS_USUAL = [
    "Klear", "bailing_moe", "cohere", "deepseek", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5", "gemma",
    "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe_lite", "granite", "granitemoe", "helium", "hunyuan_v1_dense",
    "internlm2", "internlm3", "mamba", "mimo", "minicpm", "mixtral", "nanochat", "olmo2", "olmoe", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "solar_open", "starcoder2",
    "talkie", "telechat3",
]
# fmt: on

TEXTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in _AS_USUAL},
    "afm7": {"hidden_dim": 64, "num_layers": 3, "num_kv_reuse_layers": 1, "num_heads": 4, "num_kv_heads": 2},
    "afmoe": {"layer_types": _SLIDING, "num_dense_layers": 1},
    "apertus": {"post_norm": False, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2},
    "bailing_hybrid": _BAILING,
    "bailing_moe_linear": _BAILING,
    "bailing_moe_v3": {"layer_group_size": 2, "short_conv_kernel_size": 4},
    "cohere2": {"head_dim": 16},
    "dbrx": {
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"rope_scaling": _DEEPSEEK_YARN},
    "deepseek_v41": {
        "compress_ratios": (0, 4),
        "kv_source_layer_ids": (0, 1),
        "index_source_layer_ids": (0, 1),
        "o_groups": 2,
        "o_lora_rank": 48,
        "scoring_func": "sqrtsoftplus",
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "exaone": {"num_layers": 2, "head_dim": 16},
    "exaone4": {"sliding_window_pattern": "LG", "rope_scaling": None},
    "exaone_moe": {"layer_types": _SLIDING, "is_moe_layer": [False, True]},
    "falcon_h1": {"mamba_d_ssm": 32, "attention_in_multiplier": 1.0},
    "gear": {"layer_types": ["sliding_attention", "conv_mixer", "full_attention"], "num_hidden_layers": 3},
    "gemma3n": {"text_config": {**USUAL, **_GEMMA3N, "model_type": "gemma3n_text"}},
    "gemma4_text": _GEMMA4,
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    "gpt2": _GPT,
    "gpt_bigcode": {**_GPT, "n_inner": 48},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gpt_oss": {"layer_types": _SLIDING},
    "gptj": {**_GPT, "rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan": {
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "num_hidden_layers": 4,
        "rope_scaling": {"type": "dynamic", "alpha": 1.0, "factor": 1.0},
    },
    "iquestloopcoder": {"loop_window_size": WINDOW},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    "kimi_linear": {**_KDA, "model_max_length": 2048},
    "laguna": {"layer_types": _SLIDING},
    "lfm2": {
        "full_attn_idxs": [1],
        "block_dim": 64,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {"full_attn_idxs": [1], "use_expert_bias": True},
    "lille-130m": {**_GPT, "block_size": 512, "n_kv_heads": 2, "hidden_size": 96, "n_embd": 96},
    "llama": {"layer_types": _SLIDING},
    "llama4_text": {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": {**_LONGCAT, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2},
    "mamba2": {"num_heads": 8},
    "mellum": {"layer_types": _SLIDING, "rope_parameters": {t: {"rope_theta": 10000.0} for t in _SLIDING}},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0],
        "moe_layer_freq": [0, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "layernorm_epsilon": 1e-6,
        "swa_rope_theta": 10000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 32,
        "swa_v_head_dim": 32,
    },
    "minicpm3": {"rope_scaling": _LONGROPE},
    "minimax": {"rotary_dim": 8},
    "ministral3": {"layer_types": _SLIDING, "rope_parameters": _YARN},
    "mistral4": {"rope_parameters": _YARN},
    "muse_glimmer": {"layer_types": _SLIDING, "layer_rope_theta": [10000.0, 0.0]},
    "nanbeige": {"num_loops": 2},
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
        ],
        "num_hidden_layers": 3,
    },
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-"], "num_hidden_layers": 3},
    "olmo3": {"layer_types": _SLIDING},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"], "linear_allow_neg_eigval": True},
    "openelm": {
        "num_transformer_layers": 2,
        "model_dim": 64,
        "ffn_dim_divisor": 8,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 2],
        "ffn_multipliers": [1.0, 2.0],
    },
    "phixtral": {"num_vocab": VOCABULARY, "model_dim": 64, "num_heads": 4, "num_layers": 2, "rotary_dim": 4},
    "plamo": {"n_shared_head": 2},
    "plamo2": {"hidden_size_per_head": 16, "full_attention_idx": [1]},
    "plamo3": {"window_size": 512, "sliding_window": 512},
    "qwen": {"kv_channels": 16},
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention"],
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
    },
    "rwkv7": {"a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "spark2_5": {
        "hidden_act": "gelu",
        "layer_types": _SLIDING,
        "rope_parameters": {t: {"rope_theta": 10000.0} for t in _SLIDING},
    },
    "stablelm": {"use_qkv_bias": True},
    "step3p5": {
        "layer_types": _SLIDING,
        "num_attention_groups": 2,
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "share_expert_dim": 48,
        "moe_layers_enum": "1",
    },
    "youtu_llm": {},
}

FAMILIES: dict[str, dict[str, Any]] = {
    **TEXTS,
    "gemma3": _inside("gemma3_text"),
    "gemma4": _inside("gemma4_text"),
    "kimi_k25": _inside("deepseek_v3"),
    "kimi_k3": _inside("kimi_k3", **_KIMI_K3),
    "kimi_vl": _inside("deepseek_v3"),
    "lfm2-vl": _inside("lfm2"),
    "llama4": _inside("llama4", **_LLAMA4, num_hidden_layers=4, num_experts_per_tok=1),
    "minimax_m3_vl": _inside("minimax_m3", **_M3_SPARSE),
    "mistral3": _inside("ministral3"),
    "pixtral": _inside("llama"),
    "qwen2_vl": _inside("qwen2"),
    "qwen3_5": _inside("qwen3_5_text", num_experts=0),
    "qwen3_5_moe": _inside("qwen3_5_moe_text"),
    "qwen3_vl": _inside("qwen3"),
    "qwen3_vl_moe": _inside("qwen3_moe"),
}


def family_model(name: str, seed: int = 3, **own: Any) -> nn.Module:
    """A random float32 model of the family, its weights large enough to tell prompts apart."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict({**USUAL, "model_type": name, **FAMILIES[name], **own}))
    model.load_weights([(n, _enlarged(n, a)) for n, a in tree_flatten(model.parameters())])
    model.eval()
    mx.eval(model.parameters())
    return model


def _enlarged(name: str, array: Any) -> Any:
    """Matrices grow, embeddings excepted; what mlx-lm starts at zero gets values, or whole branches would be mute."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    array = array.astype(mx.float32)
    if name.endswith(_DECAYS):
        return array - 5.0
    if not mx.any(array).item():
        return 0.3 * mx.random.normal(array.shape)
    return array if array.ndim < 2 or "embed" in name or "wte" in name else 2.5 * array

"""Tiny models of every family, option and rotary kind, for comparisons with transformers."""

from __future__ import annotations

from typing import Any

EXPERTS = "qwen3_moe"
"""The family of mixtures of experts, which the reference backend runs alone."""


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


def longrope(**fields: Any) -> dict[str, Any]:
    """Two lists of divisors for the half of each head that rotates."""
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.0, 2.0, 3.5, 5.0],
    }
    return {"rope_parameters": parameters, **fields}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mha-tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-gqa": ("llama", {}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-8": ("llama", {"head_dim": 8, "num_attention_heads": 8}),
    "llama-odd-sizes": (
        "llama",
        {
            "hidden_size": 60,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 80,
            "intermediate_size": 77,
        },
    ),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    "llama-gelu-tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama-theta": ("llama", rope("default", rope_theta=500000.0)),
    "llama-linear": ("llama", rope("linear", factor=4.0)),
    # The prompt ends before the original limit, and decoding passes it.
    "llama-dynamic": ("llama", rope("dynamic", factor=2.0) | {"max_position_embeddings": 64}),
    "llama-llama3": (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-yarn-mscale": (
        "llama",
        rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=0.7,
            mscale_all_dim=1.0,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
    "mistral": ("mistral", {"head_dim": 128}),
    "mistral-window": ("mistral", {"sliding_window": 16}),
    "qwen2-mha-tied": ("qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen2-window": (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("qwen3", {"num_key_value_heads": 1}),
    "qwen3-tied": ("qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-bias-window": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3": ("gemma3", {}),
    "gemma3-linear-bias": (
        "gemma3",
        {
            "attention_bias": True,
            "hidden_activation": "gelu",
            "intermediate_size": 120,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "gemma3-head-256": (
        "gemma3",
        {
            "head_dim": 256,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 4096,
            "num_hidden_layers": 4,
            "layer_types": None,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": False,
        },
    ),
    "phi3": ("phi3", {"num_key_value_heads": 4}),
    "phi3-window-tied": ("phi3", {"sliding_window": 16, "tie_word_embeddings": True}),
    "phi3-partial": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
            }
        },
    ),
    # Beyond the original limit from the first token on, and never beyond it.
    "phi3-long": ("phi3", longrope(original_max_position_embeddings=32)),
    "phi3-short": ("phi3", longrope(original_max_position_embeddings=128)),
    "qwen3-moe": ("qwen3_moe", {}),
    "qwen3-moe-some": (
        "qwen3_moe",
        {
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
            "num_experts_per_tok": 3,
            "use_sliding_window": True,
            "sliding_window": 21,
            "attention_bias": True,
        },
    ),
    "gpt-neox": ("gpt_neox", {}),
    "gpt-neox-sequential": (
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
}

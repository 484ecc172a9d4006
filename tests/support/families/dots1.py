"""Tiny checkpoints of dots.llm1, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Dots1ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "max_position_embeddings": 32768,
    "max_window_layers": 62,
    "model_type": "dots1",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "noaux_tc",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
FAMILY = TinyFamily(
    config="Dots1Config",
    model="Dots1ForCausalLM",
    fields={
        "n_routed_experts": 5,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 28,
        "first_k_dense_replace": 1,
    },
    cases={
        "dots1": {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
        "dots1-groups": {
            "n_routed_experts": 9,
            "n_group": 3,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "attention_bias": True,
            "num_key_value_heads": 1,
            "head_dim": 48,
        },
        "dots1-windows": {
            "num_hidden_layers": 3,
            "sliding_window": 11,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    },
    published=PUBLISHED,
)

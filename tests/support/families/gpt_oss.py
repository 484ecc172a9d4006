"""Tiny checkpoints of gpt-oss, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 201088,
}
FAMILY = TinyFamily(
    config="GptOssConfig",
    model="GptOssForCausalLM",
    fields={
        "head_dim": 16,
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "intermediate_size": 28,
        "sliding_window": 9,
    },
    spread=0.5,
    cases={
        "gpt-oss": rope("yarn", factor=4.0, original_max_position_embeddings=32, truncate=False),
        "gpt-oss-limit": {
            "num_hidden_layers": 3,
            "num_local_experts": 3,
            "swiglu_limit": 0.7,
            "swiglu_alpha": 0.9,
            "attention_bias": False,
            "num_key_value_heads": 1,
            "head_dim": 80,
        },
        "gpt-oss-layer-types": {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
            **rope("default"),
        },
    },
    published=PUBLISHED,
)

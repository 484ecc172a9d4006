"""Tiny checkpoints of Phi-3.5 with experts, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["PhiMoEForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phimoe.PhiMoEConfig",
        "AutoModelForCausalLM": "modeling_phimoe.PhiMoEForCausalLM",
    },
    "bos_token_id": 1,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "input_jitter_noise": 0.01,
    "intermediate_size": 6400,
    "lm_head_bias": True,
    "max_position_embeddings": 131072,
    "model_type": "phimoe",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "original_max_position_embeddings": 4096,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "long_factor": [1.0 + i for i in range(64)],
        "long_mscale": 1.243163121016122,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + i / 10 for i in range(64)],
        "short_mscale": 1.243163121016122,
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.0,
    "router_jitter_noise": 0.01,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.3",
    "use_cache": True,
    "vocab_size": 32064,
}
FAMILY = TinyFamily(
    config="PhimoeConfig",
    model="PhimoeForCausalLM",
    fields={"num_local_experts": 5, "intermediate_size": 28},
    cases={
        "phimoe": {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.2},
        "phimoe-plain": {"num_local_experts": 16, "num_key_value_heads": 1},
        "phimoe-two-experts": {
            "num_local_experts": 2,
            "sliding_window": 13,
            "router_jitter_noise": 0.4,
            "lm_head_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
        "phimoe-short": rope(
            "longrope",
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
            long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
            short_mscale=1.2,
            long_mscale=1.2,
            original_max_position_embeddings=128,
        ),
    },
    published=PUBLISHED,
)

"""Tiny checkpoints of Phi-3, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, longrope

PUBLISHED: dict[str, Any] = {
    "_name_or_path": "Phi-3-mini-128k-instruct",
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "long_factor": [1.0 + i / 10 for i in range(48)],
        "short_factor": [1.0 + i / 100 for i in range(48)],
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2",
    "use_cache": True,
    "vocab_size": 32064,
}
PHI4_MINI: dict[str, Any] = {
    **PUBLISHED,
    "auto_map": {**PUBLISHED["auto_map"], "AutoTokenizer": "Xenova/gpt-4o"},
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75,
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}
FAMILY = TinyFamily(
    config="Phi3Config",
    model="Phi3ForCausalLM",
    cases={
        "phi3": {"num_key_value_heads": 4},
        "phi3-window-tied": {"sliding_window": 16, "tie_word_embeddings": True},
        "phi3-partial": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
            }
        },
        # Beyond the original limit from the first token on, and never beyond it.
        "phi3-long": longrope(original_max_position_embeddings=32),
        "phi3-short": longrope(original_max_position_embeddings=128),
    },
    served={"sliding_window": 16, **longrope(original_max_position_embeddings=32)},
    published=PUBLISHED,
)

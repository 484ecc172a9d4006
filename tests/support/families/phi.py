"""Tiny checkpoints of Phi-1, 1.5 and 2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "_name_or_path": "microsoft/phi-2",
    "architectures": ["PhiForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi.PhiConfig",
        "AutoModelForCausalLM": "modeling_phi.PhiForCausalLM",
    },
    "bos_token_id": 50256,
    "embd_pdrop": 0.0,
    "eos_token_id": 50256,
    "hidden_act": "gelu_new",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 10240,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "phi",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": None,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "resid_pdrop": 0.1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.37.0",
    "use_cache": True,
    "vocab_size": 51200,
}
FAMILY = TinyFamily(
    config="PhiConfig",
    model="PhiForCausalLM",
    lacks=("rms_norm_eps",),
    fields={"layer_norm_eps": 1e-3},
    cases={
        "phi": {},
        "phi-qk-norm": {"qk_layernorm": True, "num_key_value_heads": 4},
        "phi-80": {
            "hidden_size": 240,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "hidden_act": "gelu",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.4,
            },
        },
    },
    served={"qk_layernorm": True, "num_key_value_heads": None, "tie_word_embeddings": True},
    published=PUBLISHED,
)

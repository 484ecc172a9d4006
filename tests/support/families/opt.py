"""Tiny checkpoints of OPT, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "_name_or_path": "facebook/opt-125m",
    "_remove_final_layer_norm": False,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "transformers_version": "4.21.0.dev0",
    "use_cache": True,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
FAMILY = TinyFamily(
    config="OPTConfig",
    model="OPTForCausalLM",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "ffn_dim": 100},
    cases={
        "opt": {},
        "opt-no-bias": {
            "enable_bias": False,
            "activation_function": "gelu",
            "hidden_size": 240,
            "num_attention_heads": 3,
        },
        "opt-no-weights-of-norms": {
            "layer_norm_elementwise_affine": False,
            "_remove_final_layer_norm": True,
        },
    },
    served={"tie_word_embeddings": True},
    published=PUBLISHED,
)

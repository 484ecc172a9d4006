"""Tiny checkpoints of Gemma 2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 224,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.0.dev0",
    "use_cache": True,
    "vocab_size": 256000,
    "_attn_implementation": "eager",
}
FAMILY = TinyFamily(
    config="Gemma2Config",
    model="Gemma2ForCausalLM",
    fields={
        "num_hidden_layers": 3,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 9,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 6.0,
    },
    spread=2.0,  # as Gemma's
    cases={
        "gemma2": {},
        "gemma2-no-caps": {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "hidden_activation": "gelu",
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        },
        "gemma2-head-128": {
            "head_dim": 128,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 144,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    },
    served={"num_key_value_heads": 1, "sliding_window": 33},
    published=PUBLISHED,
)

"""Tiny checkpoints of BLOOM, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_embed": 14336,
    "n_inner": None,
    "n_layer": 2,
    "num_attention_heads": 112,
    "offset_alibi": 100,
    "pad_token_id": 3,
    "pretraining_tp": 4,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "slow_but_exact": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.20.0",
    "unk_token_id": 0,
    "use_cache": True,
    "vocab_size": 250880,
}
FAMILY = TinyFamily(
    config="BloomConfig",
    model="BloomForCausalLM",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    cases={
        "bloom": {},
        "bloom-7-heads": {"hidden_size": 112, "num_attention_heads": 7, "pretraining_tp": 2},
    },
    served={"num_attention_heads": 8, "tie_word_embeddings": True},
    published=PUBLISHED,
)

"""Tiny checkpoints of MPT, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False,
        "clip_qkv": 6.0,
        "prefix_lm": False,
        "qk_ln": False,
        "softmax_scale": None,
    },
    "auto_map": {
        "AutoConfig": "configuration_mpt.MPTConfig",
        "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
    },
    "d_model": 4096,
    "emb_pdrop": 0,
    "embedding_fraction": 1.0,
    "expansion_ratio": 4,
    "init_config": {
        "emb_init_std": None,
        "emb_init_uniform_lim": None,
        "fan_mode": "fan_in",
        "init_div_is_residual": True,
        "init_gain": 0,
        "init_nonlinearity": "relu",
        "init_std": 0.02,
        "name": "kaiming_normal_",
        "verbose": 0,
    },
    "init_device": "cpu",
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 2048,
    "model_type": "mpt",
    "n_heads": 32,
    "n_layers": 2,
    "no_bias": True,
    "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.28.1",
    "use_cache": False,
    "verbose": 0,
    "vocab_size": 50432,
}
FAMILY = TinyFamily(
    config="MptConfig",
    model="MptForCausalLM",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "max_seq_len": 256, "layer_norm_epsilon": 1e-3},
    cases={
        "mpt": {},
        "mpt-clipped": {"attn_config": {"clip_qkv": 0.75, "softmax_scale": 0.5}},
        "mpt-5-heads": {"hidden_size": 240, "num_attention_heads": 5},
    },
    served={"num_attention_heads": 8, "tie_word_embeddings": True},
    published=PUBLISHED,
)

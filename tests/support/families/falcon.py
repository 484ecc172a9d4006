"""Tiny checkpoints of Falcon, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_falcon.FalconConfig",
        "AutoModel": "modeling_falcon.FalconModel",
        "AutoModelForSequenceClassification": "modeling_falcon.FalconForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_falcon.FalconForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_falcon.FalconForQuestionAnswering",
        "AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM",
    },
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "hidden_size": 4544,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 2,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.27.4",
    "use_cache": True,
    "vocab_size": 65024,
}
FALCON_11B: dict[str, Any] = {
    **PUBLISHED,
    "activation": "gelu",
    "ff_factor": 4,
    "ffn_hidden_size": 16384,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 32,
    "num_kv_heads": 8,
    "num_ln_in_parallel_attn": 1,
    "rope_scaling": None,
    "rope_theta": 500042.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.39.2",
}
"""Falcon 40B has no ``num_ln_in_parallel_attn``: two norms."""

NEW: dict[str, Any] = {"new_decoder_architecture": True, "num_kv_heads": 2}
FAMILY = TinyFamily(
    config="FalconConfig",
    model="FalconForCausalLM",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    attention="sdpa",  # "eager" adds ALiBi's slopes twice
    cases={
        "falcon": {},
        "falcon-40b": {**NEW, "bias": True, "ffn_hidden_size": 100},
        "falcon-11b": {
            **NEW,
            "num_ln_in_parallel_attn": 1,
            "num_kv_heads": 1,
            "activation": "gelu_pytorch_tanh",
            **rope("linear", factor=2.0),
        },
        "falcon-sequential": {
            "parallel_attn": False,
            "multi_query": False,
            "bias": True,
            "hidden_size": 144,
            "num_attention_heads": 3,
        },
        "falcon-slopes": {"alibi": True, "multi_query": False},
        "falcon-16-slopes": {"alibi": True, "num_attention_heads": 16, "hidden_size": 128},
        "falcon-heads": {"multi_query": False, "num_kv_heads": 4},
    },
    served={**NEW, "num_kv_heads": 4, "tie_word_embeddings": True},
    published=PUBLISHED,
)

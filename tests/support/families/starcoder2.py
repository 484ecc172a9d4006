"""Tiny checkpoints of StarCoder2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "activation_function": "gelu",
    "architectures": ["Starcoder2ForCausalLM"],
    "attention_dropout": 0.1,
    "attention_softmax_in_fp32": True,
    "bos_token_id": 0,
    "embedding_dropout": 0.1,
    "eos_token_id": 0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3072,
    "initializer_range": 0.018042,
    "intermediate_size": 12288,
    "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 16384,
    "mlp_type": "default",
    "model_type": "starcoder2",
    "norm_epsilon": 1e-05,
    "norm_type": "layer_norm",
    "num_attention_heads": 24,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "residual_dropout": 0.1,
    "rope_theta": 999999.4420358813,
    "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.37.0.dev0",
    "use_bias": True,
    "use_cache": True,
    "vocab_size": 49152,
}
FAMILY = TinyFamily(
    config="Starcoder2Config",
    model="Starcoder2ForCausalLM",
    lacks=("rms_norm_eps",),
    fields={"norm_epsilon": 1e-3},
    cases={
        "starcoder2": {"sliding_window": 11},
        "starcoder2-no-bias": {
            "use_bias": False,
            "tie_word_embeddings": False,
            "num_key_value_heads": 1,
            "hidden_act": "gelu",
            **rope("linear", factor=2.0),
        },
        "starcoder2-96": {
            "hidden_size": 288,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "tie_word_embeddings": False,
        },
    },
    served={"sliding_window": 40, "num_key_value_heads": 4},
    published=PUBLISHED,
)

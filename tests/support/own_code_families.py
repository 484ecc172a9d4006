"""Each family that exists as code of its checkpoints alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.own_code import OwnCode, Tensors, joined, renamed

CHATGLM3: dict[str, Any] = {
    "_name_or_path": "THUDM/chatglm3-6b",
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "auto_map": {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration",
        "AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration",
        "AutoModelForSeq2SeqLM": "modeling_chatglm.ChatGLMForConditionalGeneration",
        "AutoModelForSequenceClassification": "modeling_chatglm.ChatGLMForSequenceClassification",
    },
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "use_cache": True,
    "torch_dtype": "float16",
    "transformers_version": "4.30.2",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GLM4_9B: dict[str, Any] = {
    **CHATGLM3,
    "_name_or_path": "THUDM/glm-4-9b-chat",
    "architectures": ["ChatGLMForConditionalGeneration"],
    "classifier_dropout": None,
    "eos_token_id": [151329, 151336, 151338],
    "layernorm_epsilon": 1.5625e-07,
    "num_hidden_layers": 2,
    "pad_token_id": 151329,
    "padded_vocab_size": 151552,
    "rope_ratio": 500,
    "seq_length": 131072,
    "torch_dtype": "bfloat16",
    "vocab_size": 151552,
}


def _chatglm_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **GLM4_9B,
        "num_hidden_layers": config["num_hidden_layers"],
        "num_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "padded_vocab_size": config["vocab_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "hidden_size": config["hidden_size"],
        "kv_channels": config["head_dim"],
        "layernorm_epsilon": config["rms_norm_eps"],
        "multi_query_group_num": config["num_key_value_heads"],
        "num_attention_heads": config["num_attention_heads"],
        "seq_length": config["max_position_embeddings"],
        "rope_ratio": 5,
        "torch_dtype": "float32",
        "eos_token_id": 257,
    }


def _chatglm_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    for kind in ("weight", "bias"):
        parts = tuple(f"{each}_proj.{kind}" for each in "qkv")
        tensors = joined(tensors, parts, f"query_key_value.{kind}")
    names = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.layers": "transformer.encoder.layers",
        "self_attn.o_proj": "self_attention.dense",
        "self_attn.": "self_attention.",
        "gate_up_proj": "dense_h_to_4h",
        "down_proj": "dense_4h_to_h",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
    }
    frequencies = {"transformer.rotary_pos_emb.inv_freq": np.ones(4, np.float32)}
    return renamed(tensors, names) | frequencies


OWN_CODE = {
    "chatglm": OwnCode(
        like="glm",
        fields={
            "head_dim": 24,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        config=_chatglm_config,
        tensors=_chatglm_tensors,
        published=CHATGLM3,
    )
}


def edited(family: str, **changes: Any) -> dict[str, Any]:
    """A published configuration with fields changed, or removed where the change is ``...``."""
    config = {**OWN_CODE[family].published, **changes}
    return {name: value for name, value in config.items() if value is not ...}

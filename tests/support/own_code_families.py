"""Each family that exists as code of its checkpoints alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.own_code import OwnCode, Tensors, joined, renamed
from support.own_code_configs import (
    BAICHUAN2,
    CHATGLM3,
    EXAONE35,
    GLM4_9B,
    INTERNLM2,
    INTERNLM3,
    MINICPM,
)


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


SIZES = (
    *("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads"),
    *("num_hidden_layers", "rms_norm_eps", "vocab_size", "eos_token_id", "bos_token_id"),
)


def _of_llama(config: Mapping[str, Any], published: Mapping[str, Any], *more: str) -> Any:
    """A published configuration with the sizes of a tiny one, and with ``more`` of its fields."""
    sizes = {name: config[name] for name in (*SIZES, *more)}
    return {**published, **sizes, "torch_dtype": "float32"}


def _internlm2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    scaled = {"rope_theta": 500, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    return {**_of_llama(config, INTERNLM2, "num_key_value_heads"), **scaled, "bias": True}


def _internlm2_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Rows of queries, keys and values in turn, for each head that is shared."""
    groups, result = config["num_key_value_heads"], dict(tensors)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for kind in ("weight", "bias"):
            parts = [result.pop(f"{at}self_attn.{each}_proj.{kind}") for each in "qkv"]
            shared = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
            whole = np.concatenate(shared, axis=1).reshape(-1, *parts[0].shape[1:])
            result[f"{at}attention.wqkv.{kind}"] = whole
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "lm_head": "output",
    }
    return renamed(result, names)


def _internlm3_config(config: Mapping[str, Any]) -> dict[str, Any]:
    scaled = {"rope_theta": 500, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}}
    biases = {"bias": True, "qkv_bias": True}
    return {**_of_llama(config, INTERNLM3, "num_key_value_heads", "head_dim"), **scaled, **biases}


def _exaone_config(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = _of_llama(config, EXAONE35, "num_key_value_heads", "head_dim")
    del sizes["num_hidden_layers"], sizes["rms_norm_eps"]
    return {
        **sizes,
        "num_layers": config["num_hidden_layers"],
        "layer_norm_epsilon": config["rms_norm_eps"],
        "rope_scaling": {**EXAONE35["rope_scaling"], "original_max_position_embeddings": 32},
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _exaone_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    names = {
        "model.embed_tokens": "transformer.wte",
        "model.layers": "transformer.h",
        "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention",
        "post_attention_layernorm": "ln_2",
        "input_layernorm": "ln_1",
        "gate_proj": "c_fc_0",
        "up_proj": "c_fc_1",
        "down_proj": "c_proj",
    }
    return renamed(tensors, names)


def _minicpm_config(config: Mapping[str, Any]) -> dict[str, Any]:
    sizes = _of_llama(config, MINICPM, "num_key_value_heads")
    factors = {"scale_depth": 0.5 * 2**0.5, "dim_model_base": 32, "scale_emb": 6}
    return {**sizes, **factors, "tie_word_embeddings": False}


def _baichuan_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    return joined(tensors, ("q_proj", "k_proj", "v_proj"), "W_pack")


def _baichuan2_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Rows of the output matrix at any length: what is read of them has length 1."""
    lengths = np.linspace(0.5, 4.0, config["vocab_size"], dtype=np.float32)[:, None]
    tensors = tensors | {"lm_head.weight": tensors["lm_head.weight"] * lengths}
    return _baichuan_tensors(tensors, config)


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
    ),
    "internlm2": OwnCode(
        like="llama",
        fields={
            "attention_bias": True,
            "num_attention_heads": 8,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0},
            "max_position_embeddings": 48,
        },
        config=_internlm2_config,
        tensors=_internlm2_tensors,
        published=INTERNLM2,
    ),
    "internlm3": OwnCode(
        like="llama",
        fields={
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 48,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 6.0},
            "max_position_embeddings": 48,
        },
        config=_internlm3_config,
        tensors=lambda tensors, _: tensors,
        published=INTERNLM3,
    ),
    "exaone": OwnCode(
        like="llama",
        fields={
            "head_dim": 80,
            "rope_parameters": {
                **EXAONE35["rope_scaling"],
                "original_max_position_embeddings": 32,
                "rope_theta": 10000.0,
            },
        },
        config=_exaone_config,
        tensors=_exaone_tensors,
        published=EXAONE35,
    ),
    "minicpm": OwnCode(
        like="granite",
        fields={
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 2.0,
        },
        config=_minicpm_config,
        tensors=lambda tensors, _: tensors,
        published=MINICPM,
    ),
    "baichuan": OwnCode(
        like="llama",
        fields={"num_key_value_heads": 4},
        config=lambda config: {
            **_of_llama(config, BAICHUAN2),
            "architectures": ["BaiChuanForCausalLM"],
        },
        tensors=_baichuan_tensors,
        published=BAICHUAN2,
    ),
    "baichuan2": OwnCode(
        like="llama",
        fields={"num_key_value_heads": 4},
        config=lambda config: _of_llama(config, BAICHUAN2),
        tensors=_baichuan2_tensors,
        unit_head=True,
        published=BAICHUAN2,
    ),
}


def edited(family: str, **changes: Any) -> dict[str, Any]:
    """A published configuration with fields changed, or removed where the change is ``...``."""
    config = {**OWN_CODE[family].published, **changes}
    return {name: value for name, value in config.items() if value is not ...}

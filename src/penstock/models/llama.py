"""Llama 2 and 3, and the many models that use their architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    uniform_windows,
)
from penstock.models.limits import MAX_POSITIONS
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "LlamaForCausalLM"
MODEL_TYPE = "llama"
KNOWN_AS = "Llama 2 and 3, TinyLlama, SmolLM and SmolLM2, Yi, DeepSeek-R1-Distill-Llama"
TEXT_PARTS: Final = {
    MODEL_TYPE: {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    }
}
NAMES: Final = NameMap(
    plain(
        {
            "embed": "model.embed_tokens",
            "layers.*.attn_norm": "model.layers.*.input_layernorm",
            "layers.*.q": "model.layers.*.self_attn.q_proj",
            "layers.*.k": "model.layers.*.self_attn.k_proj",
            "layers.*.v": "model.layers.*.self_attn.v_proj",
            "layers.*.q_norm": "model.layers.*.self_attn.q_norm",
            "layers.*.k_norm": "model.layers.*.self_attn.k_norm",
            "layers.*.o": "model.layers.*.self_attn.o_proj",
            "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
            "layers.*.gate": "model.layers.*.mlp.gate_proj",
            "layers.*.up": "model.layers.*.mlp.up_proj",
            "layers.*.down": "model.layers.*.mlp.down_proj",
            "final_norm": "model.norm",
            "head": "lm_head",
        }
    ),
    idle=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
)
"""Mistral, Qwen2 and Qwen3 have the same."""


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    bias = config.boolean("attention_bias", False)
    config.only("sliding_window", None, "is not supported: Llama attends to the whole context")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )
    # Vicuna's longer forms name the length that scaling makes; the first Llamas, the plain one.
    longest = config.integer("max_sequence_length", model.max_positions, high=MAX_POSITIONS)
    return replace(model, max_positions=max(model.max_positions, longest))

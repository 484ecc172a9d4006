"""Phi-1, 1.5 and 2: attention beside a plain MLP, one LayerNorm for both, and biases everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_kv_heads,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, extended_positions, read_rope
from penstock.models.spec import DType, LayerSpec, ModelSpec, QkNormSpec

ARCHITECTURE = "PhiForCausalLM"
MODEL_TYPE = "phi"
KNOWN_AS = "Phi-1, 1.5 and 2"
NAMES: Final = NameMap(
    plain(
        {
            "embed": "model.embed_tokens",
            "layers.*.attn_norm": "model.layers.*.input_layernorm",
            "layers.*.q": "model.layers.*.self_attn.q_proj",
            "layers.*.k": "model.layers.*.self_attn.k_proj",
            "layers.*.v": "model.layers.*.self_attn.v_proj",
            "layers.*.q_norm": "model.layers.*.self_attn.q_layernorm",
            "layers.*.k_norm": "model.layers.*.self_attn.k_layernorm",
            "layers.*.o": "model.layers.*.self_attn.dense",
            "layers.*.up": "model.layers.*.mlp.fc1",
            "layers.*.down": "model.layers.*.mlp.fc2",
            "final_norm": "model.final_layernorm",
            "head": "lm_head",
        }
    ),
    idle=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)
"""Code that checkpoints bring along, which computes what transformers' class of the name does."""

_ROPE: Final = RopeFields(default_partial=0.5)
_DEFAULTS: Final = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    head_dim, positions = default_head_dim(config), read_positions(config)
    rope = read_rope(config, head_dim, positions, _ROPE)
    norm = read_norm(config, "layer_norm_eps", "layer", True)
    attention = replace(
        read_attention(config, head_dim, read_kv_heads(config)),
        rope=rope,
        qkv_bias=True,
        output_bias=True,
        qk_norm=QkNormSpec(norm.eps, kind="layer", bias=True)
        if config.boolean("qk_layernorm", False)
        else None,
    )
    mlp = read_mlp(config, bias=True, gated=False)
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[LayerSpec(attention, mlp, norm, None, parallel=True)] * read_num_layers(config),
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )
    return replace(model, head_bias=True)

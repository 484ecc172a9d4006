"""GPT-NeoX and Pythia: LayerNorms, biases, a plain MLP, and both parts of a layer in parallel."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_HEADS
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, extended_positions, read_rope
from penstock.models.spec import DType, LayerSpec, ModelSpec

ARCHITECTURE = "GPTNeoXForCausalLM"
MODEL_TYPE = "gpt_neox"

_ROPE: Final = RopeFields(theta="rotary_emb_base", partial="rotary_pct", default_partial=0.25)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.raw("classifier_dropout")  # of training
    head_dim, positions = default_head_dim(config), read_positions(config)
    rope = read_rope(config, head_dim, positions, _ROPE)
    bias, norm = (
        config.boolean("attention_bias", True),
        read_norm(config, "layer_norm_eps", "layer", True),
    )
    attention = replace(
        read_attention(config, head_dim, config.integer("num_attention_heads", high=MAX_HEADS)),
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
    )
    layer = LayerSpec(
        attention,
        read_mlp(config, bias=True, gated=False, default="gelu"),
        attn_norm=norm,
        mlp_norm=norm,
        parallel=config.boolean("use_parallel_residual", True),
    )
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )

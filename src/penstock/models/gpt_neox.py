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
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, extended_positions, read_rope
from penstock.models.spec import DType, LayerSpec, ModelSpec

ARCHITECTURE = "GPTNeoXForCausalLM"
MODEL_TYPE = "gpt_neox"
KNOWN_AS = "GPT-NeoX, Pythia"

_ROPE: Final = RopeFields(theta="rotary_emb_base", partial="rotary_pct", default_partial=0.25)


def names(heads: int) -> NameMap:
    """The names of the weights. Rows of query, key and value alternate, a head at a time."""
    at = "gpt_neox.layers.*."
    qkv = ("layers.*.q", "layers.*.k", "layers.*.v")
    return NameMap(
        plain(
            {
                "embed": "gpt_neox.embed_in",
                "layers.*.attn_norm": at + "input_layernorm",
                "layers.*.o": at + "attention.dense",
                "layers.*.mlp_norm": at + "post_attention_layernorm",
                "layers.*.up": at + "mlp.dense_h_to_4h",
                "layers.*.down": at + "mlp.dense_4h_to_h",
                "final_norm": "gpt_neox.final_layer_norm",
                "head": "embed_out",
            }
        )
        | fused(at + "attention.query_key_value", *qkv, shares=heads),
        idle=r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    )


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
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )
    return replace(model, names=names(attention.num_heads))

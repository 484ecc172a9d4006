"""OPT: learned positions from row 2 on, LayerNorms, biases and a plain MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_mlp,
    read_model,
    read_num_layers,
    read_positions,
)
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, LayerSpec, ModelSpec, NormSpec, PositionTable

ARCHITECTURE = "OPTForCausalLM"
MODEL_TYPE = "opt"
KNOWN_AS = "OPT, all but 350M"
IDLE: Final = frozenset(["activation_dropout", "dropout", "init_std", "layerdrop"])
"""Fields of training."""

NAMES: Final = NameMap(
    plain(
        {
            "embed": "model.decoder.embed_tokens",
            "positions": "model.decoder.embed_positions",
            "layers.*.attn_norm": "model.decoder.layers.*.self_attn_layer_norm",
            "layers.*.q": "model.decoder.layers.*.self_attn.q_proj",
            "layers.*.k": "model.decoder.layers.*.self_attn.k_proj",
            "layers.*.v": "model.decoder.layers.*.self_attn.v_proj",
            "layers.*.o": "model.decoder.layers.*.self_attn.out_proj",
            "layers.*.mlp_norm": "model.decoder.layers.*.final_layer_norm",
            "layers.*.up": "model.decoder.layers.*.fc1",
            "layers.*.down": "model.decoder.layers.*.fc2",
            "final_norm": "model.decoder.final_layer_norm",
            "head": "lm_head",
        }
    ),
    prefix="model.",
)
_FIELDS: Final = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
_DEFAULTS: Final = {"hidden_act": "relu", "max_position_embeddings": 2048}
_EPS: Final = 1e-5
"""What transformers' LayerNorms have: no field says it."""

_OFFSET: Final = 2
"""The row of position 0: those before it were for padding."""


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS)
    config.only(
        "do_layer_norm_before",
        True,
        "must be true: norms of the residual stream itself are not supported",
    )
    hidden = config.integer("hidden_size")
    config.only("word_embed_proj_dim", hidden, "must be hidden_size: embeddings are not projected")
    affine = config.boolean("layer_norm_elementwise_affine", True)
    bias, norm = config.boolean("enable_bias", True), NormSpec(_EPS, "layer", affine, affine)
    heads, positions = config.integer("num_attention_heads"), read_positions(config)
    attention = read_attention(config, default_head_dim(config), heads)
    layer = LayerSpec(
        replace(attention, qkv_bias=bias, output_bias=bias),
        read_mlp(config, bias=bias, gated=False),
        attn_norm=norm,
        mlp_norm=norm,
    )
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=positions,
        tie_embeddings=True,
    )
    if config.boolean("_remove_final_layer_norm", False):
        model = replace(model, final_norm=None)
    return replace(model, learned_positions=PositionTable(positions + _OFFSET, _OFFSET))

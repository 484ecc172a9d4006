"""GPT-2: learned positions, LayerNorms, biases, and matrices that are stored transposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_attention,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_INTERMEDIATE
from penstock.models.name_forms import Rows
from penstock.models.names import Name, NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, LayerSpec, MlpSpec, ModelSpec, PositionTable

ARCHITECTURE = "GPT2LMHeadModel"
MODEL_TYPE = "gpt2"
KNOWN_AS = "GPT-2, DistilGPT2"
_IDLE: Final = """
    attn_pdrop n_ctx output_past reorder_and_upcast_attn summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
"""
IDLE: Final = frozenset(_IDLE.split())
"""Fields of training and of other heads; scores are always float32."""

PLAIN: Final = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "layers.*.attn_norm": "transformer.h.*.ln_1",
    "layers.*.o": "transformer.h.*.attn.c_proj",
    "layers.*.mlp_norm": "transformer.h.*.ln_2",
    "layers.*.up": "transformer.h.*.mlp.c_fc",
    "layers.*.down": "transformer.h.*.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}
QKV: Final = ("layers.*.q", "layers.*.k", "layers.*.v")
NAMES: Final = NameMap(
    plain(PLAIN)
    | {
        pattern: Name(PLAIN[pattern], form=Rows(transposed=True))
        for pattern in ("layers.*.o", "layers.*.up", "layers.*.down")
    }
    | fused("transformer.h.*.attn.c_attn", *QKV, transposed=True),
    idle=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    prefix="transformer.",
)
FIELDS: Final = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_DEFAULTS: Final = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 1024,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS)
    by_layer = config.boolean("scale_attn_by_inverse_layer_idx", False)
    model = read_gpt(config, ARCHITECTURE, dtype, config.integer("num_attention_heads"))
    if not by_layer:
        return model
    layers = (
        replace(layer, mixer=replace(layer.attention, scale=layer.attention.scale / (i + 1)))
        for i, layer in enumerate(model.layers)
    )
    return replace(model, layers=tuple(layers))


def read_gpt(config: ConfigReader, architecture: str, dtype: DType, num_kv_heads: int) -> ModelSpec:
    """The model whose fields are called as GPT-2 calls them."""
    norm = read_norm(config, "layer_norm_epsilon", "layer", True)
    attention = read_attention(config, default_head_dim(config), num_kv_heads)
    if not config.boolean("scale_attn_weights", True):
        attention = replace(attention, scale=1.0)
    size = config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size")
    if size > MAX_INTERMEDIATE:
        raise config.error("intermediate_size", f"must be at most {MAX_INTERMEDIATE}")
    activation = read_activation(config, "activation_function")
    layer = LayerSpec(
        replace(attention, qkv_bias=True, output_bias=True),
        MlpSpec(size, activation, bias=True, gated=False),
        attn_norm=norm,
        mlp_norm=norm,
    )
    positions = read_positions(config)
    model = read_model(
        config,
        architecture,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=positions,
        tie_embeddings=True,
    )
    return replace(model, learned_positions=PositionTable(positions))

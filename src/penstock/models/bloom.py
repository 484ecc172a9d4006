"""BLOOM: ALiBi, a norm of embeddings, LayerNorms, biases and a plain MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_HEADS, MAX_HIDDEN
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import AlibiSpec, DType, LayerSpec, MlpSpec, ModelSpec

ARCHITECTURE = "BloomForCausalLM"
MODEL_TYPE = "bloom"
KNOWN_AS = "BLOOM, BLOOMZ"
_IDLE: Final = """
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi
    pretraining_tp skip_bias_add skip_bias_add_qkv slow_but_exact
"""
IDLE: Final = frozenset(_IDLE.split())
"""How it was trained, and how others sum what it was trained in shares of; scores are float32."""

_FIELDS: Final = {
    "hidden_size": "n_embed",
    "max_position_embeddings": "seq_length",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_DEFAULTS: Final = {"layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048}
_QKV: Final = ("layers.*.q", "layers.*.k", "layers.*.v")


def names(heads: int) -> NameMap:
    """The names of the weights. Rows of query, key and value alternate, a head at a time."""
    at = "transformer.h.*."
    return NameMap(
        plain(
            {
                "embed": "transformer.word_embeddings",
                "embed_norm": "transformer.word_embeddings_layernorm",
                "layers.*.attn_norm": at + "input_layernorm",
                "layers.*.o": at + "self_attention.dense",
                "layers.*.mlp_norm": at + "post_attention_layernorm",
                "layers.*.up": at + "mlp.dense_h_to_4h",
                "layers.*.down": at + "mlp.dense_4h_to_h",
                "final_norm": "transformer.ln_f",
                "head": "lm_head",
            }
        )
        | fused(at + "self_attention.query_key_value", *_QKV, shares=heads),
        prefix="transformer.",
    )


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS)
    config.only(
        "apply_residual_connection_post_layernorm",
        False,
        "must be false: what norms make is never the residual stream",
    )
    heads, hidden = (
        config.integer("num_attention_heads", high=MAX_HEADS),
        config.integer("hidden_size", high=MAX_HIDDEN),
    )
    config.only("n_inner", 4 * hidden, f"must be {4 * hidden}, four times the hidden size")
    norm = read_norm(config, "layer_norm_epsilon", "layer", True)
    attention = read_attention(config, default_head_dim(config), heads)
    layer = LayerSpec(
        replace(attention, alibi=AlibiSpec(), qkv_bias=True, output_bias=True),
        MlpSpec(4 * hidden, "gelu_tanh", bias=True, gated=False),
        attn_norm=norm,
        mlp_norm=norm,
    )
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=read_positions(config),
        tie_embeddings=True,
    )
    return replace(model, names=names(heads), embed_norm=norm)

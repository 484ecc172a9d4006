"""Falcon: a plain MLP beside attention or after it, and queries, keys and values in one matrix."""

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
from penstock.models.limits import MAX_HEADS, MAX_INTERMEDIATE
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.spec import AlibiSpec, DType, LayerSpec, MlpSpec, ModelSpec

ARCHITECTURE = "FalconForCausalLM"
MODEL_TYPE = "falcon"
KNOWN_AS = "Falcon 7B, 40B, 180B and 11B, Falcon-RW"

_QKV: Final = ("layers.*.q", "layers.*.k", "layers.*.v")
_DEFAULTS: Final = {"max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5}


def names(shares: int, norms: int, parallel: bool) -> NameMap:
    """The names of the weights, where rows of query, key and value alternate in ``shares``."""
    at = "transformer.h.*."
    return NameMap(
        plain(
            {
                "embed": "transformer.word_embeddings",
                "layers.*.attn_norm": at + ("ln_attn" if norms == 2 else "input_layernorm"),
                "layers.*.o": at + "self_attention.dense",
                "layers.*.mlp_norm": at + ("ln_mlp" if parallel else "post_attention_layernorm"),
                "layers.*.up": at + "mlp.dense_h_to_4h",
                "layers.*.down": at + "mlp.dense_4h_to_h",
                "final_norm": "transformer.ln_f",
                "head": "lm_head",
            }
        )
        | fused(at + "self_attention.query_key_value", *_QKV, shares=shares),
        prefix="transformer.",
    )


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"hidden_size": "n_embed"}, _DEFAULTS)
    config.only(
        "apply_residual_connection_post_layernorm", False, "must be false: true is not supported"
    )
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    new, parallel, norms = _form(config)
    kv_heads = config.optional_integer("num_kv_heads", high=MAX_HEADS) or heads
    if not new and config.boolean("multi_query", True):
        kv_heads, shares = 1, 1
    elif not new and kv_heads != heads:
        raise config.error("num_kv_heads", f"must be the {heads} heads without multi_query")
    else:
        shares = kv_heads
    config.raw("multi_query")
    head_dim, positions = default_head_dim(config), read_positions(config)
    rope, slopes = read_rope(config, head_dim, positions), config.boolean("alibi", False)
    bias, norm = (
        config.boolean("bias", False),
        read_norm(config, "layer_norm_epsilon", "layer", True),
    )
    layer = LayerSpec(
        replace(
            read_attention(config, head_dim, kv_heads),
            rope=None if slopes else rope,
            alibi=AlibiSpec(head_dim**-0.5, rounded=True) if slopes else None,
            qkv_bias=bias,
            output_bias=bias,
        ),
        _mlp(config, bias),
        attn_norm=norm,
        mlp_norm=None if parallel and norms == 1 else norm,
        parallel=parallel,
    )
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
        tie_embeddings=True,
    )
    return replace(model, names=names(shares, norms, parallel))


def _form(config: ConfigReader) -> tuple[bool, bool, int]:
    """Whether the decoder is the newer one, whether attention and MLP are parallel, and by how many
    norms."""
    new = config.boolean("new_decoder_architecture", False)
    parallel = config.boolean("parallel_attn", True)
    norms = config.optional_integer("num_ln_in_parallel_attn", high=2) or (2 if new else 1)
    if new and not parallel:
        raise config.error("parallel_attn", "must be true with new_decoder_architecture")
    if parallel and not new and norms == 2:
        raise config.error("num_ln_in_parallel_attn", "needs new_decoder_architecture")
    return new, parallel, norms if parallel else 1


def _mlp(config: ConfigReader, bias: bool) -> MlpSpec:
    hidden = config.integer("hidden_size")
    size = config.optional_integer("ffn_hidden_size", high=MAX_INTERMEDIATE) or 4 * hidden
    if config.integer("ff_factor", 4) * hidden != size and config.has("ff_factor"):
        raise config.error("ff_factor", f"contradicts ffn_hidden_size {size}")
    return MlpSpec(size, read_activation(config, "activation", "gelu"), bias, gated=False)

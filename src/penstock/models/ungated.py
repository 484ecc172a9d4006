"""The families that are Llama but for an MLP without a gate, and biases: field by field, from a
configuration to a ModelSpec."""

from __future__ import annotations

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    uniform_windows,
)
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import LLAMA_FIELDS, RopeFields
from penstock.models.spec import DType, ModelSpec, NormSpec


def read_ungated(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    *,
    biased: bool,
    norm: NormSpec | None = None,
    rope_fields: RopeFields = LLAMA_FIELDS,
) -> ModelSpec:
    """A decoder of identical layers, each with ``down(activation(up(x)))`` for its MLP.

    ``biased``: whether matrices have biases where ``attention_bias`` and ``mlp_bias`` do not say.
    ``norm`` is Llama's where it is not given.
    """
    bias = config.boolean("attention_bias", biased)
    return read_decoder(
        config,
        architecture,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", biased),
        gated=False,
        norm=norm,
        rope_fields=rope_fields,
    )

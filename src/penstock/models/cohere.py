"""Command R and R+: attention and MLP in parallel behind one LayerNorm without a bias, and
neighbouring components that rotate together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_positions,
    uniform_windows,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR, MAX_POSITIONS
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ModelSpec, QkNormSpec

ARCHITECTURE = "CohereForCausalLM"
MODEL_TYPE = "cohere"
KNOWN_AS = "Command R, R+, Aya Expanse"

DEFAULTS: Final = {
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}
_ROPE: Final = RopeFields(default_theta=500_000.0)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, DEFAULTS)
    windows = uniform_windows(config, None)
    model = read_cohere(config, ARCHITECTURE, dtype, windows, _ROPE)
    if not config.boolean("use_qk_norm", False):
        return model
    norm = QkNormSpec(read_norm(config, "layer_norm_eps").eps, kind="layer", each_head=True)
    normed = [replace(layer.attention, qk_norm=norm) for layer in model.layers]
    return with_attention(model, normed)


def read_cohere(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    windows: Sequence[int | None],
    fields: RopeFields,
) -> ModelSpec:
    """A model of Command R's layers, which all rotate."""
    head_dim, bias = default_head_dim(config), config.boolean("attention_bias", False)
    rope = read_rope(config, head_dim, read_positions(config), fields)
    model = read_decoder(
        config,
        architecture,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        rope=replace(rope, interleaved=True),
        norm=read_norm(config, "layer_norm_eps", "layer"),
    )
    layers = tuple(replace(layer, mlp_norm=None, parallel=True) for layer in model.layers)
    # The first configurations name the length that the model is for here.
    longest = config.optional_integer("model_max_length", high=MAX_POSITIONS) or model.max_positions
    return replace(
        model,
        layers=layers,
        logits_scale=config.number("logit_scale", high=MAX_FACTOR),
        max_positions=max(model.max_positions, longest),
    )

"""Ministral 3, the language model: Mistral with YaRN, whose queries grow with the position."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_positions,
    uniform_windows,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as NAMES
from penstock.models.position_scale import PositionScale
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import (
    RopeFields,
    read_parameters,
    read_theta,
    rope_section,
)
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Ministral3ForCausalLM"
MODEL_TYPE = "ministral3"
KNOWN_AS = "the language models of Ministral 3"

_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(kinds=("yarn",))
_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    silent = not (config.has("rope_parameters") or config.has("rope_scaling"))
    defaults = {**_DEFAULTS, "rope_parameters": _YARN} if silent else _DEFAULTS
    config = config.adapted({}, defaults)
    for name in ("attention_bias", "mlp_bias"):
        config.only(name, False, "must be false: Ministral 3 has no biases")
    head_dim, positions = default_head_dim(config), read_positions(config)
    parameters = rope_section(config)
    if parameters is None:
        raise config.error(
            "rope_parameters", "must not be null; leave it out for Ministral 3's own"
        )
    beta = parameters.number("llama_4_scaling_beta", low=0.0, high=MAX_FACTOR)
    parameters.only("max_position_embeddings", positions, f"contradicts the {positions} outside")
    theta = read_theta(config, parameters)
    rope = read_parameters(parameters, head_dim, positions, _ROPE, theta=theta)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
        rope=rope,
    )
    scale = PositionScale(beta, rope.original_max_positions)
    scaled = [replace(layer.attention, position_scale=scale) for layer in model.layers]
    return with_attention(model, scaled)

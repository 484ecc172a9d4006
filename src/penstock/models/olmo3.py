"""OLMo 3: OLMo 2 with windows on three layers of four, whose rotation is not scaled."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    every,
    read_layer_kinds,
    read_num_layers,
    read_positions,
    windows_of,
)
from penstock.models.olmo2 import DEFAULTS, read_olmo
from penstock.models.olmo2 import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import (
    RopeFields,
    read_rope,
    read_ropes,
    refuse_truncate,
    rope_section,
)
from penstock.models.spec import DType, ModelSpec, RopeSpec

ARCHITECTURE = "Olmo3ForCausalLM"
MODEL_TYPE = "olmo3"
KNOWN_AS = "OLMo 3 7B and 32B"

_ROPE: Final = RopeFields(default_theta=500_000.0)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, DEFAULTS | {"sliding_window": 4096})
    config.only("clip_qkv", None, "must be null: OLMo 3 does not clip queries, keys and values")
    kinds = read_layer_kinds(config, every(4, read_num_layers(config)))
    windows = windows_of(kinds, config.integer("sliding_window"))
    return read_olmo(config, ARCHITECTURE, dtype, kinds, windows, _ropes(config))


def _ropes(config: ConfigReader) -> dict[str, RopeSpec]:
    """v5 has parameters for each kind of layer; v4 scaled the rotation of full layers.

    Where v4's base is not the default one, transformers 4 took it for all layers, and transformers
    5 takes it for full layers alone, so that nobody knows what was meant.
    """
    head_dim, positions = default_head_dim(config), read_positions(config)
    ropes = read_ropes(config, head_dim, positions, {FULL: _ROPE, SLIDING: _ROPE})
    if ropes is not None:
        return ropes
    config.only(
        _ROPE.theta,
        _ROPE.default_theta,
        f"must be {_ROPE.default_theta:g}, or in a rope_parameters with {FULL!r} and {SLIDING!r}: "
        "which layers it is for is not certain",
    )
    scaled = rope_section(config)
    if scaled is not None:
        refuse_truncate(scaled)
    local = RopeSpec(theta=_ROPE.default_theta, dim=head_dim)
    return {FULL: read_rope(config, head_dim, positions, _ROPE), SLIDING: local}

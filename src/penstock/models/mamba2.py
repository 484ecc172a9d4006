"""Mamba 2: selective scans and nothing else."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import read_activation, read_model, read_norm, read_num_layers
from penstock.models.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.selective import read_scan, scan_names
from penstock.models.spec import DType, LayerSpec, ModelSpec

ARCHITECTURE = "Mamba2ForCausalLM"
MODEL_TYPE = "mamba2"
KNOWN_AS = "Mamba-Codestral 7B, Mamba 2 in transformers' form"
IDLE: Final = frozenset(
    {
        "chunk_size",
        "norm_before_gate",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "rms_norm",
        "time_step_floor",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
    }
)
NAMES: Final = NameMap(
    plain(
        {
            "embed": "backbone.embeddings",
            "layers.*.attn_norm": "backbone.layers.*.norm",
            "final_norm": "backbone.norm_f",
            "head": "lm_head",
        }
    )
    | scan_names("backbone.layers.*.mixer")
)
MAX_POSITIONS: Final = 1 << 18
"""Tokens of a sequence at most: the model itself has no bound."""

_FIELDS: Final = {
    "conv_bias": "use_conv_bias",
    "groups": "n_groups",
    "heads": "num_heads",
    "kernel": "conv_kernel",
    "projection_bias": "use_bias",
}
_DEFAULTS: Final = {
    "groups": 8,
    "head_dim": 64,
    "heads": 128,
    "kernel": 4,
    "layer_norm_epsilon": 1e-5,
    "num_hidden_layers": 64,
    "state_size": 128,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS)
    if read_activation(config) != "silu":
        raise config.error("hidden_act", "must be silu: scans of others are not supported")
    norm = read_norm(config, "layer_norm_epsilon")
    heads, dim = (
        config.integer("heads", high=MAX_HEADS),
        config.integer("head_dim", high=MAX_HEAD_DIM),
    )
    width = config.integer("hidden_size", high=MAX_HIDDEN) * config.integer("expand", 2)
    if heads * dim != width:
        raise config.error("heads", f"times head_dim must be expand times hidden_size ({width})")
    layer = LayerSpec(read_scan(config, heads, dim, norm.eps), None, norm, None)
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=MAX_POSITIONS,
    )

"""Apertus: norms of queries and keys, and an MLP without a gate whose activation, xIELU, is
learned."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_mlp,
    read_positions,
    uniform_windows,
)
from penstock.models.limits import MAX_INTERMEDIATE
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.name_forms import Scalar
from penstock.models.names import Name, NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_own_rope
from penstock.models.spec import DType, MlpSpec, ModelSpec

ARCHITECTURE = "ApertusForCausalLM"
MODEL_TYPE = "apertus"
KNOWN_AS = "Apertus 8B and 70B"
_ACT: Final = "model.layers.*.mlp.act_fn."
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.attn_norm": "model.layers.*.attention_layernorm",
            "layers.*.mlp_norm": "model.layers.*.feedforward_layernorm",
        }
    )
    | {
        "layers.*.act_p": Name(_ACT + "alpha_p", suffix=""),
        "layers.*.act_n": Name(_ACT + "alpha_n", suffix=""),
        "layers.*.act_beta": Name(_ACT + "beta", suffix="", form=Scalar()),
        "layers.*.act_eps": Name(_ACT + "eps", suffix="", form=Scalar()),
    },
    LLAMA_NAMES.idle,
)

_DEFAULTS: Final = {
    "hidden_act": "xielu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(default_theta=12_000_000.0)
_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# What published configurations say of forms that transformers does not compute.
_ONLY: Final = (("mlp_bias", False), ("post_norm", False), ("qk_norm", True))


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    for name, value in _ONLY:
        config.only(name, value, f"must be {str(value).lower()}: other forms are not supported")
    bias, head_dim = config.boolean("attention_bias", False), default_head_dim(config)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        mlp=_mlp(config),
        rope=read_own_rope(config, head_dim, read_positions(config), _ROPE, _LLAMA3),
    )


def _mlp(config: ConfigReader) -> MlpSpec:
    if config.text("hidden_act") != "xielu":
        return read_mlp(config, gated=False)
    wide = config.integer("intermediate_size", high=MAX_INTERMEDIATE)
    return MlpSpec(wide, "xielu", gated=False)

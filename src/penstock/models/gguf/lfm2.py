"""LFM2 in GGUF files: short convolutions between layers of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL
from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    EXPERTS,
    SIGMOID,
    read_attending,
    read_gating,
)
from penstock.models.names import Name, either, fused, plain
from penstock.models.spec import ModelSpec


def _lfm2(keys: Keys, fields: Fields) -> None:
    fields["layer_types"] = [FULL if each else "conv" for each in read_attending(keys, fields)]


def _lfm2_moe(keys: Keys, fields: Fields) -> None:
    _lfm2(keys, fields)
    read_gating(keys, SIGMOID, SIGMOID)
    fields["use_expert_bias"] = keys.has_tensor("exp_probs_b.bias")


def _lfm2_names(spec: ModelSpec) -> Mapping[str, Name]:
    at = "blk.*.shortconv."
    parts = (f"layers.*.conv_{name}" for name in "bcx")
    return plain({"layers.*.conv": f"{at}conv", "layers.*.conv_out": f"{at}out_proj"}) | (
        fused(f"{at}in_proj", *parts)
        | either(plain({"final_norm": "token_embd_norm"}), plain({"final_norm": "output_norm"}))
    )


_LFM2: Final = Architecture(
    "Lfm2ForCausalLM",
    fields={
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "conv_L_cache": "shortconv.l_cache",
    },
    without=without("rms_norm_eps", "head_dim", "num_key_value_heads"),
    fixed={"block_auto_adjust_ff_dim": False},
    adjust=_lfm2,
    names=_lfm2_names,
)

LFM2S: Final[Mapping[str, Architecture]] = {
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        family="Lfm2MoeForCausalLM",
        fields={
            **_LFM2.fields,
            **EXPERTS,
            "moe_intermediate_size": "expert_feed_forward_length",
            "num_dense_layers": "leading_dense_block_count",
        },
        fixed={},
        adjust=_lfm2_moe,
    ),
}
"""LFM2's architectures, by ``general.architecture``."""

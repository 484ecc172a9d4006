"""LFM2: short convolutions along the sequence, and attention in some of the layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.lfm2_layers import DEFAULTS, FIELDS, read_hybrid
from penstock.models.lfm2_layers import IDLE as IDLE
from penstock.models.limits import MAX_FACTOR, MAX_INTERMEDIATE
from penstock.models.name_forms import OneColumn
from penstock.models.names import Name, NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, MlpSpec, ModelSpec

ARCHITECTURE = "Lfm2ForCausalLM"
MODEL_TYPE = "lfm2"
KNOWN_AS = "LFM2 350M, 700M, 1.2B and 2.6B, and LFM2.5"
_AT: Final = "model.layers.*."
NAMES: Final = NameMap(
    plain(
        {
            "embed": "model.embed_tokens",
            "layers.*.attn_norm": f"{_AT}operator_norm",
            "layers.*.q": f"{_AT}self_attn.q_proj",
            "layers.*.k": f"{_AT}self_attn.k_proj",
            "layers.*.v": f"{_AT}self_attn.v_proj",
            "layers.*.q_norm": f"{_AT}self_attn.q_layernorm",
            "layers.*.k_norm": f"{_AT}self_attn.k_layernorm",
            "layers.*.o": f"{_AT}self_attn.out_proj",
            "layers.*.conv_out": f"{_AT}conv.out_proj",
            "layers.*.mlp_norm": f"{_AT}ffn_norm",
            "layers.*.gate": f"{_AT}feed_forward.w1",
            "layers.*.up": f"{_AT}feed_forward.w3",
            "layers.*.down": f"{_AT}feed_forward.w2",
            "final_norm": "model.embedding_norm",
            "head": "lm_head",
        }
    )
    | fused(f"{_AT}conv.in_proj", *(f"layers.*.conv_{name}" for name in "bcx"))
    | {"layers.*.conv": Name(f"{_AT}conv.conv", form=OneColumn())}
)

_DEFAULTS: Final = {
    **DEFAULTS,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS)
    named = config.optional_integer("block_ff_dim", high=MAX_INTERMEDIATE)
    size = config.optional_integer("intermediate_size", high=MAX_INTERMEDIATE)
    wide = config.integer("intermediate_size") if named is None else named
    model = read_hybrid(config, ARCHITECTURE, dtype, MlpSpec(_adjusted(config, wide)))
    if size in (None, wide):
        return model
    return replace(
        model, notes=(f"config.json: block_ff_dim {wide} counts, not intermediate_size {size}",)
    )


def _adjusted(config: ConfigReader, width: int) -> int:
    """The width of MLPs, of which configurations have 3/2 unless they say otherwise."""
    adjusts = config.boolean("block_auto_adjust_ff_dim", True)
    factor = None
    if config.has("block_ffn_dim_multiplier"):
        factor = config.number("block_ffn_dim_multiplier", high=MAX_FACTOR)
    multiple = config.integer("block_multiple_of", high=MAX_INTERMEDIATE)
    config.raw("block_ffn_dim_multiplier")
    if not adjusts:
        return width
    width = int(2 * width / 3)
    if factor is not None:
        width = -(-int(factor * width) // multiple) * multiple
    if not 1 <= width <= MAX_INTERMEDIATE:
        raise config.error("block_ffn_dim_multiplier", f"makes MLPs of width {width}")
    return width

"""The layers of LFM2, dense and with experts: convolutions, and attention in some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_num_layers,
)
from penstock.models.limits import MAX_HIDDEN
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, MlpSpec, ModelSpec, ShortConvSpec

DEFAULTS: Final[dict[str, object]] = {
    "conv_L_cache": 3,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
FIELDS: Final = {"tie_word_embeddings": "tie_embedding"}
IDLE: Final = frozenset(
    ("block_mlp_init_scale", "block_out_init_scale")
    + ("block_use_xavier_init", "conv_use_xavier_init")
)
"""What training began with."""

_CONV: Final = "conv"


def read_hybrid(
    config: ConfigReader, architecture: str, dtype: DType, mlp: MlpSpec, whole: bool = True
) -> ModelSpec:
    """A model of convolutions and attention, all of whose layers have this MLP.

    ``whole``: every layer attends where the configuration names no kinds; else it is refused.
    """
    kinds = _read_kinds(config, whole)
    norm = read_norm(config, "norm_eps")
    model = read_decoder(
        config,
        architecture,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=(None,) * len(kinds),
        qk_norm=True,
        norm=norm,
        mlp=mlp,
        rope_fields=RopeFields(default_theta=1e6),
    )
    hidden = config.integer("hidden_size", high=MAX_HIDDEN)
    same = {"block_dim": hidden, "conv_dim": hidden, "conv_dim_out": hidden}
    same |= {"num_heads": config.integer("num_attention_heads")}
    fixed = {"block_norm_eps": norm.eps, "block_use_swiglu": True, "hidden_act": "silu"}
    for name, value in {**same, **fixed, "use_pos_enc": True}.items():
        config.only(name, value, f"must be {value!r} here: other forms are not supported")
    taps = config.integer("conv_L_cache", low=2)
    conv = ShortConvSpec(hidden, taps, config.boolean("conv_bias", False))
    pairs = zip(model.layers, kinds, strict=True)
    layers = (replace(layer, mixer=conv) if kind == _CONV else layer for layer, kind in pairs)
    return replace(model, layers=tuple(layers))


def _read_kinds(config: ConfigReader, whole: bool) -> tuple[str, ...]:
    """The kind of each layer: by ``layer_types``, or by the numbers of those that attend."""
    layers, types = read_num_layers(config), config.texts("layer_types")
    if types is not None and (len(types) != layers or not set(types) <= {_CONV, FULL}):
        raise config.error("layer_types", f"must be {layers} times {_CONV!r} or {FULL!r}")
    listed = config.has("full_attn_idxs")
    attending = config.integers("full_attn_idxs", high=layers - 1)
    if types is None and not listed and not whole:
        raise config.error("layer_types", f"must be given: {layers} times {_CONV!r} or {FULL!r}")
    by_number = tuple(FULL if i in attending or not listed else _CONV for i in range(layers))
    if types is not None and listed and types != by_number:
        raise config.error("full_attn_idxs", "contradicts layer_types")
    return by_number if types is None else types

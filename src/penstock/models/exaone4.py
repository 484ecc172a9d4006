"""EXAONE 4: norms behind each part and of queries and keys, and layers without a window that do
not rotate where others have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    every,
    read_decoder,
    read_kv_heads,
    read_layer_kinds,
    read_num_layers,
    windows_of,
)
from penstock.models.olmo2 import NAMES as NAMES
from penstock.models.olmo2 import norms_behind
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Exaone4ForCausalLM"
MODEL_TYPE = "exaone4"
KNOWN_AS = "EXAONE 4.0 1.2B and 32B"

_DEFAULTS: Final = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    window = _window(config)
    kinds = _layer_kinds(config, window)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, window),
        qk_norm=True,
    )
    layers = tuple(
        replace(layer, mixer=replace(layer.attention, rope=None))
        if window is not None and kind == FULL
        else layer
        for layer, kind in zip(model.layers, kinds, strict=True)
    )
    return norms_behind(replace(model, layers=layers))


def _window(config: ConfigReader) -> int | None:
    """The window of layers that have one: 4,096 where nothing is said, none where that is null."""
    if config.contains("sliding_window"):
        return config.optional_integer("sliding_window")
    return 4096


def _layer_kinds(config: ConfigReader, window: int | None) -> tuple[str, ...]:
    """``layer_types``; where it is absent, a number says which layers have no window.

    Beside ``layer_types`` published configurations say the same by a word, which transformers does
    not read.
    """
    name = "sliding_window_pattern"
    layers = read_num_layers(config)
    if config.has("layer_types"):
        config.raw(name)
        default: tuple[str, ...] = ()
    elif window is None:
        config.raw(name)
        default = (FULL,) * layers
    else:
        default = every(config.integer(name, 4), layers)
    kinds = read_layer_kinds(config, default)
    if window is None and SLIDING in kinds:
        raise config.error("layer_types", f"has {SLIDING!r}, but sliding_window is null")
    return kinds

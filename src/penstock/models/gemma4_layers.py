"""How the layers of Gemma 4 differ: windows, heads, rotations, and whose keys they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    every,
    read_attention,
    read_layer_kinds,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_HEAD_DIM, MAX_HEADS
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_parameters
from penstock.models.rope_spec import RopeSpec
from penstock.models.spec import AttentionSpec, NormSpec, QkNormSpec

_GLOBAL: Final = ("global_head_dim", "num_global_key_value_heads")
_FULL_ROPE: Final = RopeFields(default_theta=1e6, kinds=("default", "linear", "proportional"))
_LOCAL_ROPE: Final = RopeFields(kinds=_FULL_ROPE.kinds)


@dataclass(frozen=True)
class Heads:
    """The heads of one layer."""

    num_kv_heads: int
    head_dim: int


def read_attentions(
    config: ConfigReader, kinds: Sequence[str], norm: NormSpec
) -> list[AttentionSpec]:
    """The attention of each layer, but for whose keys and values it reads."""
    bias, window = config.boolean("attention_bias", False), config.integer("sliding_window")
    shared = config.boolean("attention_k_eq_v", False)
    heads = _heads(config, kinds, shared)
    ropes = _ropes(config, kinds, heads, read_positions(config))
    return [
        replace(
            read_attention(config, each.head_dim, each.num_kv_heads),
            rope=ropes[kind],
            scale=1.0,
            window=window if kind == SLIDING else None,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QkNormSpec(norm.eps),
            v_norm=replace(norm, weight=False),
            key_is_value=shared and kind != SLIDING,
        )
        for each, kind in zip(heads, kinds, strict=True)
    ]


def read_kinds(config: ConfigReader) -> tuple[str, ...]:
    """Which layers have a window: by ``layer_types``, else all but each sixth, and never the last.

    Raises ModelError for a list whose last layer has one: transformers takes it from it.
    """
    layers = read_num_layers(config)
    kinds = read_layer_kinds(config, (*every(6, layers)[:-1], FULL))
    if kinds[-1] != FULL:
        raise config.error("layer_types", f"must end with {FULL!r}")
    return kinds


def _heads(config: ConfigReader, kinds: Sequence[str], shared: bool) -> list[Heads]:
    """The heads of each layer, by kind of layer or, as transformers 5 writes it, by layer.

    ``shared``: whether layers without a window have no values, and KV heads of their own number.
    """
    kv_heads = config.integer("num_key_value_heads", high=MAX_HEADS)
    local = Heads(kv_heads, config.integer("head_dim", high=MAX_HEAD_DIM))
    by_layer = config.section("per_layer_config")
    if by_layer is None:
        many = config.optional_integer(_GLOBAL[1], high=MAX_HEADS)
        size = config.integer(_GLOBAL[0], 512, high=MAX_HEAD_DIM)
        full = Heads(many if shared and many is not None else kv_heads, size)
        return [full if kind == FULL else local for kind in kinds]
    for name in _GLOBAL:
        config.only(name, None, "stands beside per_layer_config; keep only one of them")
    heads = []
    for index in range(len(kinds)):
        own = by_layer.section(str(index))
        if own is None:
            heads.append(local)
            continue
        many = own.integer("num_key_value_heads", kv_heads, high=MAX_HEADS)
        heads.append(Heads(many, own.integer("head_dim", local.head_dim, high=MAX_HEAD_DIM)))
        own.finish()
    by_layer.finish()
    return heads


def _ropes(
    config: ConfigReader, kinds: Sequence[str], heads: Sequence[Heads], positions: int
) -> Mapping[str, RopeSpec]:
    """The rotation of each kind of layer. Raises ModelError where its layers have other heads."""
    both = config.section("rope_parameters")
    ropes = {}
    for kind, fields in ((FULL, _FULL_ROPE), (SLIDING, _LOCAL_ROPE)):
        sizes = {each.head_dim for each, its in zip(heads, kinds, strict=True) if its == kind}
        own = None if both is None else both.section(kind)
        if len(sizes) > 1:
            raise config.error("per_layer_config", f"has heads of {sizes} in {kind!r} layers")
        for size in sizes:
            if own is not None:
                ropes[kind] = read_parameters(own, size, positions, fields)
            elif both is not None:
                raise config.error("rope_parameters", f"must have {kind!r}")
            elif kind == SLIDING:
                ropes[kind] = RopeSpec(fields.default_theta, size)
            else:
                quarter = int(0.25 * size // 2)
                ropes[kind] = RopeSpec(fields.default_theta, size, "proportional", rotating=quarter)
    if both is not None:
        both.finish()
    return ropes


def read_sources(config: ConfigReader, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """The layer whose keys and values each layer reads: of the last layers, the last before them of
    the same kind; None: its own."""
    layers = len(kinds)
    first = layers - config.integer("num_kv_shared_layers", 0, low=0, high=layers - 1)
    last = {kind: index for index, kind in enumerate(kinds[:first])}
    if not set(kinds[first:]) <= set(last):
        raise config.error(
            "num_kv_shared_layers", "leaves no layer with keys and values to each kind of layer"
        )
    return (*(None for _ in range(first)), *(last[kind] for kind in kinds[first:]))

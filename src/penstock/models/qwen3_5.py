"""Qwen3.5, dense: gated delta nets with gated attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_mlp
from penstock.models.names import NameMap, fused, plain
from penstock.models.qwen_hybrid import DEFAULTS, NET, names, read_hybrid
from penstock.models.reader import ConfigReader
from penstock.models.spec import AttentionSpec, DType, ModelSpec

ARCHITECTURE = "Qwen3_5ForCausalLM"
MODEL_TYPE = "qwen3_5_text"
KNOWN_AS = "the language models of Qwen3.5 0.8B to 27B"
MTP: Final = frozenset({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})
"""Fields of layers that draft, which are not run."""
IDLE: Final = MTP

_DEFAULTS: Final = {**DEFAULTS, "num_key_value_heads": 4, "intermediate_size": 12288}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    if config.integers("mlp_only_layers"):
        raise config.error("mlp_only_layers", "must be empty: no layer has experts")
    mlp = read_mlp(config)
    spec = read_hybrid(config, ARCHITECTURE, dtype, lambda _: mlp)
    return replace(spec, names=names_of(spec, experts=False))


def names_of(spec: ModelSpec, experts: bool) -> NameMap:
    """The names of a Qwen3.5's weights."""
    mixers = (layer.mixer for layer in spec.layers)
    heads = next((each.num_heads for each in mixers if isinstance(each, AttentionSpec)), 1)
    single = {f"layers.*.delta.{name}": f"{NET}.in_proj_{name}" for name in ("z", "b", "a")}
    joined = [f"layers.*.delta.{name}" for name in ("q", "k", "v")]
    return names(heads, experts, fused(f"{NET}.in_proj_qkv", *joined) | plain(single))

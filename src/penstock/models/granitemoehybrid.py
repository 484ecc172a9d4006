"""Granite 4: Granite with selective scans (Mamba 2) in most layers and attention in the others, and
with experts beside an MLP that all tokens are given to."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models import granitemoe
from penstock.models.blocks import (
    FULL,
    default_head_dim,
    read_attention,
    read_kv_heads,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.factors import read_factor
from penstock.models.granite import with_factors
from penstock.models.mixtures import TRAINING, read_expert_size
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.selective import MAMBA_FIELDS, SCAN, read_expanded_scan, scan_names
from penstock.models.spec import (
    AttentionSpec,
    DType,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    SharedExpertSpec,
)

ARCHITECTURE = "GraniteMoeHybridForCausalLM"
MODEL_TYPE = "granitemoehybrid"
KNOWN_AS = "Granite 4.0 Micro, H-Micro, H-Tiny and H-Small"
IDLE: Final = frozenset({"init_method", "mamba_chunk_size"})
_MLP: Final = "model.layers.*.shared_mlp"
NAMES: Final = NameMap(
    dict(granitemoe.NAMES.names)
    | scan_names("model.layers.*.mamba")
    | fused(f"{_MLP}.input_linear", "layers.*.gate", "layers.*.up")
    | fused(f"{_MLP}.input_linear", "layers.*.shared.gate", "layers.*.shared.up")
    | plain({f"layers.*.{at}down": f"{_MLP}.output_linear" for at in ("", "shared.")}),
    granitemoe.NAMES.idle,
)

_FIELDS: Final = {**granitemoe.FIELDS, **MAMBA_FIELDS, "layer_types": "layers_block_type"}
_DEFAULTS: Final = {
    **granitemoe.DEFAULTS,
    "groups": 1,
    "heads": 128,
    "kernel": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "shared_intermediate_size": 1024,
    "state_size": 256,
}
_KINDS: Final = {"mamba": SCAN, "attention": FULL, SCAN: SCAN, FULL: FULL}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS, TRAINING)
    config.only("normalization_function", "rmsnorm", "must be rmsnorm")
    norm, positions, mlp = read_norm(config), read_positions(config), _read_mlp(config)
    attention, scan = _read_attention(config, positions), read_expanded_scan(config, norm.eps)
    count = read_num_layers(config)
    kinds = config.texts("layer_types") or (SCAN,) * count
    if len(kinds) != count or not set(kinds) <= _KINDS.keys():
        raise config.error("layer_types", f"must be {count} times one of {', '.join(_KINDS)}")
    mixers = [attention if _KINDS[kind] == FULL else scan for kind in kinds]
    if attention.rope is not None:
        positions = extended_positions(attention.rope, positions)
    layers = [LayerSpec(each, mlp, attn_norm=norm, mlp_norm=norm) for each in mixers]
    model = read_model(
        config, ARCHITECTURE, dtype, layers=layers, final_norm=norm, max_positions=positions
    )
    return with_factors(config, model)


def _read_attention(config: ConfigReader, positions: int) -> AttentionSpec:
    head_dim, bias = default_head_dim(config), config.boolean("attention_bias", False)
    rope = read_rope(config, head_dim, positions)
    rotates = config.raw("position_embedding_type") == "rope"
    config.only("position_embedding_type", "rope" if rotates else "nope", "must be rope or nope")
    return replace(
        read_attention(config, head_dim, read_kv_heads(config)),
        rope=rope if rotates else None,
        scale=read_factor(config, "attention_multiplier"),
        qkv_bias=bias,
        output_bias=bias,
    )


def _read_mlp(config: ConfigReader) -> MlpSpec | ExpertsSpec:
    size = read_expert_size(config, "shared_intermediate_size")
    dense = replace(read_mlp(config), intermediate_size=size)
    if config.raw("num_experts") == 0:
        config.raw("num_experts_per_tok")
        return dense
    return replace(granitemoe.read_experts(config), shared=SharedExpertSpec(size))

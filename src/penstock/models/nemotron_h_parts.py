"""The layers of Nemotron-H, each of one part."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    FULL,
    read_activation,
    read_attention,
    read_kv_heads,
    read_mlp,
)
from penstock.models.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN
from penstock.models.mixtures import (
    read_corrected_routing,
    read_expert_size,
    read_num_experts,
    read_top_k,
)
from penstock.models.reader import ConfigReader
from penstock.models.selective import SCAN, read_scan
from penstock.models.spec import ExpertsSpec, LayerSpec, NormSpec, SharedExpertSpec

MLP: Final = "mlp"
MOE: Final = "moe"
_PATTERN: Final = "hybrid_override_pattern"
_KINDS: Final = {
    "M": SCAN,
    "mamba": SCAN,
    SCAN: SCAN,
    "*": FULL,
    "attention": FULL,
    FULL: FULL,
    "-": MLP,
    MLP: MLP,
    "E": MOE,
    MOE: MOE,
}
_EXPERTS: Final = (
    "n_shared_experts",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "topk_group",
)
"""Fields of experts, which mean nothing where no layer has any."""


def read_parts(config: ConfigReader, norm: NormSpec) -> list[LayerSpec]:
    """The layers, each of which has ``norm`` before its part."""
    kinds = _read_kinds(config)
    config.only("attention_bias", False, "must be false: attention has no biases")
    config.only("mamba_proj_bias", False, "must be false: use_bias is what scans go by")
    config.only("mamba_hidden_act", "silu", "must be silu, as transformers computes it")
    config.only("mamba_ssm_cache_dtype", "float32", "must be float32: states are kept in it")
    config.only("sliding_window", None, "is not supported: attention is to the whole context")
    head_dim = config.integer("head_dim", high=MAX_HEAD_DIM)
    attention = LayerSpec(read_attention(config, head_dim, read_kv_heads(config)), None, norm, None)
    heads = config.integer("heads", high=MAX_HEADS)
    scan = read_scan(config, heads, config.integer("mamba_head_dim", high=MAX_HEAD_DIM), norm.eps)
    mlp = read_mlp(config, bias=config.boolean("mlp_bias", False), gated=False)
    layers = {
        FULL: attention,
        SCAN: LayerSpec(scan, None, norm, None),
        MLP: LayerSpec(None, mlp, None, norm),
    }
    if MOE in kinds:
        layers[MOE] = LayerSpec(None, _read_experts(config), None, norm)
    for name in _EXPERTS:
        config.raw(name)
    return [layers[kind] for kind in kinds]


def _read_kinds(config: ConfigReader) -> list[str]:
    """The kind of each layer: a letter of the pattern, or a name. Where both are given they must
    agree."""
    pattern = list(config.text(_PATTERN)) if config.has(_PATTERN) else None
    listed, said = config.texts("layer_types"), config.contains("layer_types")
    name, kinds = "layer_types", list(listed or ())
    if pattern is not None:
        name, kinds = _PATTERN, pattern
    if not kinds or not set(kinds) <= _KINDS.keys():
        raise config.error(name, f"must name a kind for each layer, of {', '.join(_KINDS)}")
    read = [_KINDS[kind] for kind in kinds]
    if pattern is not None and said and listed is not None:
        other = config.name("layer_types")
        if [_KINDS.get(kind) for kind in listed] != read:
            raise config.error(_PATTERN, f"contradicts {other}: leave out the one that is wrong")
    stored = config.name(name)
    if not said and pattern is None:
        stored = f"{_PATTERN} or {stored}, which are absent"
    config.only("num_hidden_layers", len(read), f"must be the {len(read)} of {stored}")
    return read


def _read_experts(config: ConfigReader) -> ExpertsSpec:
    number = read_num_experts(config)
    top_k = read_top_k(config, number)
    bias = config.boolean("mlp_bias", False)
    config.only("n_shared_experts", 1, "must be 1: all tokens are given to one more expert")
    shared = read_expert_size(config, "moe_shared_expert_intermediate_size")
    return ExpertsSpec(
        num_experts=number,
        top_k=top_k,
        intermediate_size=read_expert_size(config),
        activation=read_activation(config),
        routing=read_corrected_routing(config, number, top_k),
        shared=SharedExpertSpec(shared, bias),
        gates=False,
        latent=config.optional_integer("moe_latent_size", high=MAX_HIDDEN),
        latent_bias=bias,
    )

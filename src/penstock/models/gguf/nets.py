"""Architectures of GGUF files with gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL
from penstock.models.gguf.architecture import Architecture, Fields
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.names import one_more
from penstock.models.gguf.parts import EXPERTS, PARTIAL, first_attention
from penstock.models.name_forms import Decay, Less
from penstock.models.names import Name, either, fused, plain
from penstock.models.spec import GatedDeltaSpec, LayerSpec, ModelSpec

_LINEAR: Final = "linear_attention"
_AT: Final = "blk.*."
_NET: Final = "layers.*.delta."
_LAYERS: Final = "attention.recurrent_layers"


def _net(keys: Keys, fields: Fields) -> None:
    """The sizes of delta nets, and which layers are such: those that a list says, or all but each
    fourth, or n-th."""
    inner, heads = keys.integer("ssm.inner_size"), keys.integer("ssm.time_step_rank", low=1)
    if inner % heads:
        raise keys.error("ssm.time_step_rank", f"must divide the {inner} of ssm.inner_size evenly")
    fields["linear_value_head_dim"] = inner // heads
    interval, layers, said = (
        keys.integer("full_attention_interval", 4, low=1),
        keys.layers,
        keys.raw(_LAYERS),
    )
    nets = [(i + 1) % interval != 0 for i in range(layers)]
    if said is not None:
        if not isinstance(said, list) or len(said) < layers:
            raise keys.error(_LAYERS, f"must have {layers} values")
        nets = [bool(each) for each in said[:layers]]
    fields["layer_types"] = [_LINEAR if each else FULL for each in nets]
    fields["attention_bias"] = keys.has_tensor(".attn_q.bias")


def _names(spec: ModelSpec, gates: Mapping[str, Name]) -> Mapping[str, Name]:
    attention = first_attention(spec)
    heads = 1 if attention is None else attention.num_heads
    return {
        **one_more(),
        **fused(f"{_AT}attn_q", "layers.*.q", "layers.*.attn_gate", shares=heads),
        **plain({each: f"{_AT}attn_{each[-1]}" for each in ("layers.*.k", "layers.*.v")}),
        "layers.*.mlp_norm": Name(f"{_AT}post_attention_norm", form=Less(0.0)),
        f"{_NET}conv": Name(f"{_AT}ssm_conv1d"),
        f"{_NET}a_log": Name(f"{_AT}ssm_a", suffix="", form=Decay()),
        f"{_NET}dt_bias": Name(f"{_AT}ssm_dt", suffix=".bias"),
        f"{_NET}norm": Name(f"{_AT}ssm_norm"),
        f"{_NET}o": Name(f"{_AT}ssm_out"),
        **gates,
    }


_SPLIT: Final = fused(f"{_AT}attn_qkv", *(f"{_NET}{name}" for name in "qkv")) | plain(
    {f"{_NET}z": f"{_AT}attn_gate"}
)


def _next_names(spec: ModelSpec) -> Mapping[str, Name]:
    """Qwen3-Next's: rows of a key head lie together, in the first files those of all products."""
    nets = (layer.mixer for layer in spec.layers)
    keys = next((each.key_heads for each in nets if isinstance(each, GatedDeltaSpec)), 1)
    joined = fused(f"{_AT}ssm_in", *(f"{_NET}{name}" for name in "qkvz"), shares=keys)
    gates = fused(f"{_AT}ssm_ba", f"{_NET}b", f"{_NET}a", shares=keys)
    return _names(spec, either(_SPLIT, joined) | gates)


def _names_of_single_gates(spec: ModelSpec) -> Mapping[str, Name]:
    return _names(
        spec, _SPLIT | plain({f"{_NET}b": f"{_AT}ssm_beta", f"{_NET}a": f"{_AT}ssm_alpha"})
    )


def _tiled(spec: ModelSpec) -> ModelSpec:
    """Files of Qwen3.5 have the first value head of every key head, then the second of each."""

    def stored(layer: LayerSpec) -> LayerSpec:
        net = layer.mixer
        if not isinstance(net, GatedDeltaSpec) or net.key_heads in (1, net.value_heads):
            return layer
        return replace(layer, mixer=replace(net, tiled=True))

    return replace(spec, layers=tuple(map(stored, spec.layers)))


_FIELDS: Final = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_MIXTURE: Final = EXPERTS | {
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
_QWEN35: Final = Architecture(
    "Qwen3_5ForCausalLM",
    fields=_FIELDS,
    partial=PARTIAL,
    adjust=_net,
    names=_names_of_single_gates,
    stored=_tiled,
    idle_keys=frozenset({"rope.dimension_sections"}),  # of positions that text has one of
)

NETS: Final[Mapping[str, Architecture]] = {
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM",
        fields=_FIELDS | _MIXTURE,
        fixed={"norm_topk_prob": True},
        partial=PARTIAL,
        adjust=_net,
        names=_next_names,
    ),
    "qwen35": _QWEN35,
    "qwen35moe": replace(
        _QWEN35,
        family="Qwen3_5MoeForCausalLM",
        fields=_FIELDS | _MIXTURE,
        idle_keys=_QWEN35.idle_keys | {"feed_forward_length"},
    ),
}
"""Architectures with linear attention by the delta rule, by ``general.architecture``."""

"""Architectures of GGUF files with selective scans (Mamba 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL
from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    GRANITE_FACTORS,
    NO_GROUP_LIMIT,
    PARTIAL,
    SIGMOID,
    paired_names,
    read_attending,
    read_either_norm,
    read_gating,
)
from penstock.models.mixtures import UP
from penstock.models.name_forms import Decay, FromMatrix
from penstock.models.names import Name, either, fused, plain, stacked
from penstock.models.selective import SCAN
from penstock.models.spec import ModelSpec, SelectiveSpec

_AT: Final = "blk.*.ssm_"
_SCANS: Final = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
_NO_SCANS: Final = {"mamba_n_heads": 1, "mamba_expand": 1}
_SHARED: Final = "expert_shared_feed_forward_length"
_FINETUNED: Final = "rope.scaling.finetuned"
"""Whether a Granite, or a Bamba, rotates."""


def scan_names(spec: ModelSpec) -> dict[str, Name]:
    """The names of scans' weights."""
    rows = [f"layers.*.scan.{name}" for name in ("z", "xbc", "dt")]
    own = {
        "a_log": Name(f"{_AT}a", suffix="", form=Decay(column=True)),
        "dt_bias": Name(f"{_AT}dt", suffix=".bias"),
        "d": Name(f"{_AT}d", suffix="", form=FromMatrix(1)),
        "conv": Name(f"{_AT}conv1d"),
        "norm": Name(f"{_AT}norm", form=FromMatrix(_groups(spec), rows=True)),
        "o": Name(f"{_AT}out"),
    }
    return fused(f"{_AT}in", *rows) | {f"layers.*.scan.{name}": own[name] for name in own}


def _groups(spec: ModelSpec) -> int:
    """The groups of the scans; 1 where there is none."""
    mixers = (mixer for layer in spec.layers for mixer in layer.mixers)
    return next((each.groups for each in mixers if isinstance(each, SelectiveSpec)), 1)


def _names(spec: ModelSpec) -> dict[str, Name]:
    return scan_names(spec) | paired_names(spec)


def _expansion(keys: Keys, name: str = "embedding_length") -> int:
    """How many times as wide as the model a scan is."""
    inner, hidden = keys.integer("ssm.inner_size"), keys.integer(name, low=1)
    if inner % hidden:
        raise keys.error("ssm.inner_size", f"must be a multiple of {hidden} here")
    return inner // hidden


def _mamba2(keys: Keys, fields: Fields) -> None:
    inner, heads = keys.integer("ssm.inner_size"), keys.integer("ssm.time_step_rank", low=1)
    if inner % heads:
        raise keys.error("ssm.time_step_rank", f"must divide the {inner} of ssm.inner_size evenly")
    fields |= {"expand": _expansion(keys), "head_dim": inner // heads}
    fields["use_conv_bias"] = keys.has_tensor("ssm_conv1d.bias")
    fields["use_bias"] = keys.has_tensor("ssm_in.bias")


def granite(keys: Keys, fields: Fields) -> None:
    """Granite, which of a file is one of four: of Granite 4, with scans, experts that all tokens
    are given to, or without rotation, has fields of its own, also where a file is called otherwise,
    and Bamba has none of Granite's factors."""
    scans, shared = keys.has("ssm.conv_kernel"), keys.integer(_SHARED, 0)
    rotates = keys.raw(_FINETUNED) is not False
    if not scans and not shared and rotates:
        return
    attends = read_attending(keys, fields)
    fields |= {"mamba_conv_bias": keys.has_tensor("ssm_conv1d.bias")}
    if not all(attends):
        fields["mamba_expand"] = _expansion(keys)
        fields |= {name: keys.integer(key) for name, key in _SCANS.items()}
    else:
        fields |= _NO_SCANS
    for key in (*_SCANS.values(), "ssm.inner_size"):
        keys.raw(key)
    if not keys.has("embedding_scale"):
        _bamba(keys, fields, attends, rotates)
        return
    fields["architectures"] = ["GraniteMoeHybridForCausalLM"]
    fields["layer_types"] = [FULL if each else SCAN for each in attends]
    fields["position_embedding_type"] = "rope" if rotates else "nope"
    fields["num_local_experts"] = keys.integer("expert_count", 0)
    fields["num_experts_per_tok"] = keys.integer("expert_used_count", 0)
    fields.pop("num_experts", None)
    fields["shared_intermediate_size"] = shared or fields["intermediate_size"]
    fields["attention_bias"] = keys.has_tensor("attn_q.bias")
    fields["mamba_proj_bias"] = keys.has_tensor("ssm_in.bias")


def _bamba(keys: Keys, fields: Fields, attends: list[bool], rotates: bool) -> None:
    if not rotates:
        raise keys.error(_FINETUNED, "must be true for Bamba, which rotates")
    fields["architectures"] = ["BambaForCausalLM"]
    fields["attn_layer_indices"] = [i for i, each in enumerate(attends) if each]
    fields["attention_bias"] = keys.has_tensor("attn_q.bias")
    fields[PARTIAL] = keys.integer("rope.dimension_count", keys.head_size) / keys.head_size


def _falcon(keys: Keys, fields: Fields) -> None:
    """Factors are part of the weights already."""
    fields |= {"mamba_d_ssm": keys.integer("ssm.inner_size"), "mamba_norm_before_gate": False}
    fields["mamba_rms_norm"] = keys.has_tensor("ssm_norm.weight")
    fields["mamba_conv_bias"] = keys.has_tensor("ssm_conv1d.bias")


def _falcon_names(spec: ModelSpec) -> dict[str, Name]:
    """The norm before the MLP has no suffix in its name."""
    norm = {"layers.*.mlp_norm": Name("blk.*.ffn_norm", suffix="")}
    return scan_names(spec) | either(norm, plain({"layers.*.mlp_norm": "blk.*.ffn_norm"}))


def _nemotron(keys: Keys, fields: Fields) -> None:
    """A layer with keys attends, one with columns of an MLP is one, of experts if it has a router,
    and all others are scans."""
    attends = read_attending(keys, fields)
    widths = keys.each_layer("feed_forward_length")
    kinds = []
    for i, attention in enumerate(attends):
        experts = keys.has_tensor(f"blk.{i}.ffn_gate_inp.weight")
        other = ("moe" if experts else "mlp") if widths[i] else SCAN
        kinds.append(FULL if attention else other)
    dense = {width for width, kind in zip(widths, kinds, strict=True) if kind == "mlp"}
    if len(dense) > 1:
        raise keys.error("feed_forward_length", "differs between layers, which is not supported")
    fields |= {"layers_block_type": kinds, "intermediate_size": max(dense, default=1)}
    heads = keys.integer("ssm.time_step_rank", low=1)
    fields |= {"mamba_num_heads": heads, "use_conv_bias": keys.has_tensor("ssm_conv1d.bias")}
    fields["mamba_head_dim"] = keys.integer("ssm.inner_size") // heads
    fields["use_bias"] = keys.has_tensor("ssm_in.bias")
    fields["mlp_bias"] = keys.has_tensor("ffn_up.bias")
    read_either_norm(keys, fields, "layer_norm_epsilon")
    read_gating(keys, SIGMOID, SIGMOID)


def _nemotron_names(spec: ModelSpec) -> Mapping[str, Name]:
    own = {
        "layers.*.mlp_norm": "blk.*.attn_norm",
        "layers.*.latent_in": "blk.*.ffn_latent_down",
        "layers.*.latent_out": "blk.*.ffn_latent_up",
    }
    ups = stacked("blk.*.ffn_up_exps", UP, suffix=".weight", quantized=True)
    return _names(spec) | plain(own) | ups


_NO_HEADS: Final = without("head_dim", "num_key_value_heads")
_ONE: Final = """
    attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier
    lm_head_multiplier ssm_in_multiplier ssm_out_multiplier
"""
_NEMOTRON: Final = Architecture(
    "NemotronHForCausalLM",
    fields={
        "attention_head_dim": "attention.key_length",
        "conv_kernel": "ssm.conv_kernel",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
    },
    without=_NO_HEADS | without("rms_norm_eps", "intermediate_size"),
    rotates=False,
    adjust=_nemotron,
    names=_nemotron_names,
    idle_keys=frozenset(
        {
            "attention.value_length",
            "expert_group_count",
            "expert_group_used_count",
            "rope.freq_base",
            _FINETUNED,
        }
    ),
)

SCANS: Final[Mapping[str, Architecture]] = {
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM",
        fields=_SCANS,
        fixed={
            **dict.fromkeys(_ONE.split(), 1.0),
            "mlp_multipliers": [1.0] * 2,
            "ssm_multipliers": [1.0] * 5,
        },
        adjust=_falcon,
        names=_falcon_names,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        fields=GRANITE_FACTORS,
        without=_NO_HEADS,
        adjust=granite,
        names=_names,
    ),
    "mamba2": Architecture(
        "Mamba2ForCausalLM",
        fields={
            "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
            "conv_kernel": "ssm.conv_kernel",
            "n_groups": "ssm.group_count",
            "num_heads": "ssm.time_step_rank",
            "state_size": "ssm.state_size",
        },
        without=_NO_HEADS
        | without(
            "rms_norm_eps", "intermediate_size", "num_attention_heads", "max_position_embeddings"
        ),
        rotates=False,
        adjust=_mamba2,
        names=scan_names,
        idle_keys=frozenset({"attention.head_count", "feed_forward_length", "context_length"}),
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(
        _NEMOTRON,
        fields={
            **_NEMOTRON.fields,
            "n_routed_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_shared_expert_intermediate_size": _SHARED,
            "moe_latent_size": "moe_latent_size",
            "n_shared_experts": "expert_shared_count",
            "routed_scaling_factor": "expert_weights_scale",
            "norm_topk_prob": "expert_weights_norm",
        },
        otherwise=NO_GROUP_LIMIT,
    ),
}
"""Architectures with state-space layers, by ``general.architecture``."""

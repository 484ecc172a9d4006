"""What Qwen3-Next and Qwen3.5 share: gated delta nets, and gated attention in some layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    default_head_dim,
    read_activation,
    read_attention,
    read_kv_heads,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_HEAD_DIM, MAX_HEADS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    MLP,
    QWEN_NAMES,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
)
from penstock.models.name_forms import OneColumn
from penstock.models.names import Name, NameMap, fused, less_one, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, extended_positions, read_rope
from penstock.models.spec import (
    DType,
    ExpertsSpec,
    GatedDeltaSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    QkNormSpec,
    Routing,
    SharedExpertSpec,
)

DEFAULTS: Final[Mapping[str, object]] = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
}
NET: Final = "model.layers.*.linear_attn"

_LINEAR: Final = "linear_attention"
_MAX_TAPS: Final = 64
_ROPE: Final = RopeFields(default_partial=0.25, idle=("mrope_section", "mrope_interleaved"))
"""Dimensions of a position, of which text has one, share the components of a head."""
_SHIFTED: Final = {
    "layers.*.attn_norm": "model.layers.*.input_layernorm",
    "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.q_norm": "model.layers.*.self_attn.q_norm",
    "layers.*.k_norm": "model.layers.*.self_attn.k_norm",
    "final_norm": "model.norm",
}
"""Norms whose weights are stored less 1."""


def names(heads: int, experts: bool, projections: Mapping[str, Name]) -> NameMap:
    """The names of the weights, for so many heads of attention; ``projections`` are those that go
    into delta nets."""
    mixture = (
        dict(QWEN_NAMES.names)
        | shared_names(f"{MLP}.shared_expert")
        | plain({"layers.*.shared.share": f"{MLP}.shared_expert_gate"})
    )
    gated = ("layers.*.q", "layers.*.attn_gate")
    return NameMap(
        dict(mixture if experts else LLAMA_NAMES.names)
        | less_one(_SHIFTED)
        | fused("model.layers.*.self_attn.q_proj", *gated, shares=heads)
        | {
            "layers.*.delta.conv": Name(f"{NET}.conv1d", form=OneColumn()),
            "layers.*.delta.a_log": Name(f"{NET}.A_log", suffix=""),
            "layers.*.delta.dt_bias": Name(f"{NET}.dt_bias", suffix=""),
            "layers.*.delta.norm": Name(f"{NET}.norm"),
            "layers.*.delta.o": Name(f"{NET}.out_proj"),
        }
        | dict(projections),
        rf"{LLAMA_NAMES.idle}|mtp\..*",
    )


def read_hybrid(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    mlp: Callable[[int], MlpSpec | ExpertsSpec],
) -> ModelSpec:
    """A decoder of delta nets and gated attention; ``mlp`` gives the MLP of each layer."""
    head_dim, positions, norm = default_head_dim(config), read_positions(config), read_norm(config)
    rope = read_rope(config, head_dim, positions, _ROPE)
    bias = config.boolean("attention_bias", False)
    config.only("attn_output_gate", True, "must be true: attention is gated")
    config.only("mamba_ssm_dtype", "float32", "must be float32: states are kept in it")
    attention = replace(
        read_attention(config, head_dim, read_kv_heads(config)),
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNormSpec(norm.eps),
        output_gate=True,
    )
    net = read_delta_net(config, norm.eps)
    layers = [
        LayerSpec(attention if kind == FULL else net, mlp(i), attn_norm=norm, mlp_norm=norm)
        for i, kind in enumerate(_kinds(config))
    ]
    return read_model(
        config,
        architecture,
        dtype,
        layers=layers,
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )


def read_delta_net(config: ConfigReader, eps: float) -> GatedDeltaSpec:
    """The gated delta net of all layers that have one."""
    keys = config.integer("linear_num_key_heads", high=MAX_HEADS)
    values = config.integer("linear_num_value_heads", high=MAX_HEADS)
    if values % keys:
        raise config.error("linear_num_value_heads", f"must be a multiple of the {keys} key heads")
    if read_activation(config) != "silu":
        raise config.error("hidden_act", "must be silu: delta nets of others are not supported")
    return GatedDeltaSpec(
        key_heads=keys,
        value_heads=values,
        key_dim=config.integer("linear_key_head_dim", high=MAX_HEAD_DIM),
        value_dim=config.integer("linear_value_head_dim", high=MAX_HEAD_DIM),
        kernel=config.integer("linear_conv_kernel_dim", low=2, high=_MAX_TAPS),
        eps=eps,
    )


def read_experts(config: ConfigReader) -> ExpertsSpec:
    """Qwen2's mixture of experts, with one that every token is given to."""
    number = read_num_experts(config)
    shared = read_expert_size(config, "shared_expert_intermediate_size")
    return ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", True)),
        shared=SharedExpertSpec(shared, gated=True),
    )


def _kinds(config: ConfigReader) -> tuple[str, ...]:
    """``layer_types``, or attention in every ``full_attention_interval``-th layer."""
    layers, kinds = read_num_layers(config), config.texts("layer_types")
    interval = config.integer("full_attention_interval", 4)
    if kinds is None:
        return tuple(_LINEAR if (i + 1) % interval else FULL for i in range(layers))
    if len(kinds) != layers or not set(kinds) <= {_LINEAR, FULL}:
        raise config.error("layer_types", f"must be {layers} times {_LINEAR!r} or {FULL!r}")
    return kinds

"""What DeepSeek's families share: attention over latents (MLA), and experts that all tokens share
beside those of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    read_activation,
    read_mlp,
    read_model,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import (
    MAX_EPS,
    MAX_EXPERTS,
    MAX_FACTOR,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HEADS_WIDTH,
    MAX_HIDDEN,
    MAX_LAYERS,
    MIN_EPS,
)
from penstock.models.mixtures import (
    CHOICE_BIAS,
    MLP,
    QWEN_NAMES,
    read_corrected_routing,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
)
from penstock.models.names import Name, NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import (
    LLAMA_FIELDS,
    RopeFields,
    extended_positions,
    read_rope,
    rope_section,
)
from penstock.models.rope_spec import RopeSpec
from penstock.models.spec import (
    AttentionSpec,
    DType,
    ExpertsSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    Routing,
    SharedExpertSpec,
)

TRAINING: Final = frozenset({"aux_loss_alpha", "seq_aux", "ep_size", "output_router_logits"})
"""Fields that matter to training, or to how it is spread over machines."""
FIELDS: Final = {"num_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
"""What configurations call fields that other families have by other names."""
DEFAULTS: Final = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
}
"""Ranks and sizes that transformers takes where they are left out: those of V2 and V3."""
NAMES: Final = NameMap(
    dict(QWEN_NAMES.names)
    | shared_names(f"{MLP}.shared_experts")
    | {CHOICE_BIAS: Name(f"{MLP}.gate.e_score_correction_bias", suffix="")},
    QWEN_NAMES.idle,
)
"""All names but those of attention's weights."""
_EXPERTS: Final = (
    "num_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_group",
    "topk_group",
    "topk_method",
    "scoring_func",
    "norm_topk_prob",
    "routed_scaling_factor",
    "moe_layer_freq",
)
"""Fields of experts, which mean nothing where no layer has any."""
_EPS: Final = 1e-6
"""The epsilon of latents' norms, whatever that of the other norms is."""
_LAYER: Final = "model.layers.*.self_attn"

ReadRouting = Callable[[ConfigReader, int, int], Routing]
"""Reads how tokens are routed, given the numbers of experts and of those that a token has."""


def read_mlps(
    config: ConfigReader, read_routing: ReadRouting, bias: bool = False
) -> list[MlpSpec | ExpertsSpec]:
    """The MLP of each layer: plain ones in the first layers, and then experts."""
    layers = read_num_layers(config)
    dense = config.integer("first_k_dense_replace", low=0, high=MAX_LAYERS)
    mlp = read_mlp(config, bias=bias)
    if dense >= layers:
        for name in _EXPERTS:
            config.raw(name)
        return [mlp] * layers
    config.only("moe_layer_freq", 1, "must be 1: all layers behind the first ones have experts")
    experts = read_experts(config, mlp, read_routing)
    return [mlp if i < dense else experts for i in range(layers)]


def read_experts(config: ConfigReader, mlp: MlpSpec, read_routing: ReadRouting) -> ExpertsSpec:
    """Experts of the kind that ``mlp`` is, some of which every token is given to."""
    number, size = read_num_experts(config), read_expert_size(config)
    top_k = read_top_k(config, number)
    shared = config.integer("n_shared_experts", low=0, high=MAX_EXPERTS)
    return ExpertsSpec(
        num_experts=number,
        top_k=top_k,
        intermediate_size=size,
        activation=read_activation(config),
        routing=read_routing(config, number, top_k),
        shared=SharedExpertSpec(shared * size, mlp.bias) if shared else None,
    )


def read_sigmoid_routing(config: ConfigReader, num_experts: int, top_k: int) -> Routing:
    """V3's routing, by scores that are sigmoids; anything else is refused."""
    config.only("scoring_func", "sigmoid", "must be sigmoid, as transformers computes it")
    config.only("topk_method", "noaux_tc", "must be noaux_tc, as transformers computes it")
    return read_corrected_routing(config, num_experts, top_k)


def drafting_layers(config: ConfigReader, layers: int) -> str:
    """Regular expression of the tensors of layers that draft, which lie behind the others."""
    said = config.optional_integer("num_mtp_layers", low=0, high=MAX_LAYERS)
    drafting = 1 if said is None else said
    numbers = "|".join(str(layers + i) for i in range(drafting))
    return rf"model\.layers\.({numbers or '(?!)'})\..*"


def read_latent_decoder(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    mlps: Sequence[MlpSpec | ExpertsSpec],
    *,
    interleaved: bool = True,
    idle: str = r"(?!)",
    rope_fields: RopeFields = LLAMA_FIELDS,
) -> ModelSpec:
    """A decoder of one layer for each of ``mlps``, with attention over latents.

    ``interleaved``: whether neighbouring components of a head rotate together. ``idle``: regular
    expression of further tensors that no model reads.
    """
    positions = read_positions(config)
    attention = read_latent_attention(config, positions, interleaved, rope_fields)
    norm = NormSpec(config.number("rms_norm_eps", low=MIN_EPS, high=MAX_EPS))
    assert attention.rope is not None
    model = read_model(
        config,
        architecture,
        dtype,
        layers=[LayerSpec(attention, mlp, attn_norm=norm, mlp_norm=norm) for mlp in mlps],
        final_norm=norm,
        max_positions=extended_positions(attention.rope, positions),
    )
    names = NameMap({**NAMES.names, **_names(attention)}, f"{NAMES.idle}|{idle}")
    return replace(model, names=names)


def read_latent_attention(
    config: ConfigReader,
    max_positions: int,
    interleaved: bool = True,
    rope_fields: RopeFields = LLAMA_FIELDS,
) -> AttentionSpec:
    """Attention over latents, from its ranks and the sizes of heads.

    ``interleaved``: whether neighbouring components rotate together.
    """
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    config.only(
        "num_key_value_heads", heads, f"must be {heads}, one for each head, where latents are kept"
    )
    latent = LatentSpec(
        kv_rank=config.integer("kv_lora_rank", high=MAX_HEAD_DIM),
        nope_dim=config.integer("qk_nope_head_dim", high=MAX_HEAD_DIM),
        rope_dim=config.integer("qk_rope_head_dim", high=MAX_HEAD_DIM),
        v_dim=config.integer("v_head_dim", high=MAX_HEAD_DIM),
        q_rank=config.optional_integer("q_lora_rank", high=MAX_HIDDEN),
        eps=_EPS,
        bias=config.boolean("attention_bias", False),
    )
    head_dim = latent.nope_dim + latent.rope_dim
    # What follows from the ranks, where it is written out.
    config.only("head_dim", latent.rope_dim, f"must be qk_rope_head_dim ({latent.rope_dim})")
    config.only("qk_head_dim", head_dim, f"must be what both parts of a head have ({head_dim})")
    if heads * max(head_dim, latent.v_dim, latent.key_dim) > MAX_HEADS_WIDTH:
        raise config.error(
            "num_attention_heads", f"times a head's size must be at most {MAX_HEADS_WIDTH}"
        )
    rope = replace(
        read_rope(config, latent.rope_dim, max_positions, rope_fields), interleaved=interleaved
    )
    return AttentionSpec(
        heads,
        1,
        latent.key_dim,
        rope,
        scale=head_dim**-0.5 * _score_factor(config, rope),
        output_bias=latent.bias,
        latent=latent,
    )


def _names(attention: AttentionSpec) -> dict[str, Name]:
    """The names of attention's weights. Tensors of heads have both parts of each head in turn."""
    heads, latent = attention.num_heads, attention.latent
    assert latent is not None
    queries = "q_proj" if latent.q_rank is None else "q_b_proj"
    return (
        plain(
            {
                "layers.*.q_a": f"{_LAYER}.q_a_proj",
                "layers.*.q_a_norm": f"{_LAYER}.q_a_layernorm",
                "layers.*.kv_a_norm": f"{_LAYER}.kv_a_layernorm",
            }
        )
        | fused(f"{_LAYER}.{queries}", "layers.*.q_nope", "layers.*.q_rope", shares=heads)
        | fused(f"{_LAYER}.kv_a_proj_with_mqa", "layers.*.kv_a", "layers.*.k_rope")
        | fused(f"{_LAYER}.kv_b_proj", "layers.*.k_up", "layers.*.v_up", shares=heads)
    )


def _score_factor(config: ConfigReader, rope: RopeSpec) -> float:
    """What YaRN multiplies scores by: the square of ``0.1 m ln(factor) + 1`` with m the weight of
    all dimensions; 1 where that is 0 or absent."""
    section = rope_section(config)
    if section is None or rope.kind == "default":
        return 1.0
    weight = section.number("mscale_all_dim", 0.0, low=0.0, high=MAX_FACTOR)
    return (0.1 * weight * math.log(max(rope.factor, 1.0)) + 1.0) ** 2

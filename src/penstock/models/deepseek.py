"""What DeepSeek's families share: attention over latents (MLA), and experts that all tokens share
beside those of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.models.blocks import read_mlp, read_model, read_num_layers, read_positions
from penstock.models.limits import (
    MAX_EPS,
    MAX_EXPERTS,
    MAX_FACTOR,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HEADS_WIDTH,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MIN_EPS,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import Name, NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope, rope_section
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
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.router": "model.layers.*.mlp.gate",
            **{
                f"layers.*.{ours}.{name}": f"model.layers.*.mlp.{theirs}.{name}_proj"
                for ours, theirs in (("experts", "experts.#"), ("shared", "shared_experts"))
                for name in ("gate", "up", "down")
            },
        }
    )
    | {
        "layers.*.router.choice_bias": Name("model.layers.*.mlp.gate", ".e_score_correction_bias"),
    },
    LLAMA_NAMES.idle,
)
"""All names but those of attention's weights."""
_EXPERTS: Final = (
    "n_routed_experts",
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


@dataclass(frozen=True)
class ExpertDefaults:
    """What a configuration means that leaves these fields out."""

    dense_layers: int
    experts: int
    intermediate_size: int
    shared: int
    top_k: int | None


def read_mlps(
    config: ConfigReader,
    defaults: ExpertDefaults,
    read_routing: Callable[[ConfigReader], Routing],
    bias: bool = False,
) -> list[MlpSpec | ExpertsSpec]:
    """The MLP of each layer: plain ones in the first layers, and then experts."""
    layers = read_num_layers(config)
    dense = config.integer("first_k_dense_replace", defaults.dense_layers, low=0, high=MAX_LAYERS)
    mlp = read_mlp(config, bias=bias)
    if dense >= layers:
        for name in _EXPERTS:
            config.raw(name)
        return [mlp] * layers
    config.only("moe_layer_freq", 1, "must be 1: all layers behind the first ones have experts")
    wide = config.integer(
        "moe_intermediate_size", defaults.intermediate_size, high=MAX_INTERMEDIATE
    )
    number = config.integer("n_routed_experts", defaults.experts, high=MAX_EXPERTS)
    shared = config.integer("n_shared_experts", defaults.shared, low=0, high=MAX_EXPERTS)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=config.integer("num_experts_per_tok", defaults.top_k, high=number),
        intermediate_size=wide,
        activation=mlp.activation,
        routing=read_routing(config),
        shared=SharedExpertSpec(shared * wide, bias) if shared else None,
    )
    return [mlp if i < dense else experts for i in range(layers)]


def read_groups(config: ConfigReader, groups: int | None, chosen: int | None) -> tuple[int, int]:
    """The number of groups of experts, and how many of them a token's experts come from."""
    number = config.integer("n_group", groups, high=MAX_EXPERTS)
    return number, config.integer("topk_group", chosen, high=number)


def read_latent_decoder(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    mlps: Sequence[MlpSpec | ExpertsSpec],
    *,
    interleaved: bool = True,
    idle: str = r"(?!)",
) -> ModelSpec:
    """A decoder of one layer for each of ``mlps``, with attention over latents.

    ``interleaved``: whether neighbouring components of a head rotate together. ``idle``: regular
    expression of further tensors that no model reads.
    """
    positions = read_positions(config)
    attention = read_latent_attention(config, positions, interleaved)
    norm = NormSpec(config.number("rms_norm_eps", 1e-6, low=MIN_EPS, high=MAX_EPS))
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
    config: ConfigReader, max_positions: int, interleaved: bool = True
) -> AttentionSpec:
    """Attention over latents, from its ranks and the sizes of heads.

    Sizes that are left out are those of transformers' configurations, which are DeepSeek's.
    ``interleaved``: whether neighbouring components rotate together.
    """
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    config.only(
        "num_key_value_heads", heads, f"must be {heads}, one for each head, where latents are kept"
    )
    absent = not config.contains("q_lora_rank")
    q_rank = 1536 if absent else config.optional_integer("q_lora_rank", high=MAX_HIDDEN)
    latent = LatentSpec(
        kv_rank=config.integer("kv_lora_rank", 512, high=MAX_HEAD_DIM),
        nope_dim=config.integer("qk_nope_head_dim", 128, high=MAX_HEAD_DIM),
        rope_dim=config.integer("qk_rope_head_dim", 64, high=MAX_HEAD_DIM),
        v_dim=config.integer("v_head_dim", 128, high=MAX_HEAD_DIM),
        q_rank=q_rank,
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
    rope = replace(read_rope(config, latent.rope_dim, max_positions), interleaved=interleaved)
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

"""The fields of ``config.json`` that GGUF files have keys for, from a model's spec: the inverse of
what its family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.errors import ModelError
from penstock.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedDeltaSpec,
    LatentSpec,
    MlpSpec,
    ModelSpec,
    RopeSpec,
    ShortConvSpec,
    attention_of,
)


def described_attention(spec: ModelSpec) -> AttentionSpec:
    """The attention of the first layer that has any, of those with windows the first without.

    Raises ModelError where no layer attends.
    """
    found = [each for layer in spec.layers if (each := attention_of(layer)) is not None]
    if not found:
        raise ModelError("a model without attention is not written to GGUF files")
    return next((each for each in found if each.window is None), found[0])


def first_rope(spec: ModelSpec) -> RopeSpec | None:
    """The rotation of :func:`described_attention`; where that rotates nothing, the first there
    is."""
    own = described_attention(spec).rope
    found = (each.rope for layer in spec.layers if (each := attention_of(layer)) is not None)
    return own or next((rope for rope in found if rope is not None), None)


def first_mlp(spec: ModelSpec) -> MlpSpec | None:
    """The first MLP that is no mixture of experts."""
    return next((each.mlp for each in spec.layers if isinstance(each.mlp, MlpSpec)), None)


def first_experts(spec: ModelSpec) -> ExpertsSpec | None:
    return next((each.mlp for each in spec.layers if isinstance(each.mlp, ExpertsSpec)), None)


def _intermediate(spec: ModelSpec) -> object:
    mlp = first_mlp(spec) or first_experts(spec)
    return None if mlp is None else mlp.intermediate_size


def _dense_intermediate(spec: ModelSpec) -> object:
    mlp = first_mlp(spec)
    return None if mlp is None else mlp.intermediate_size


def _of_experts(get: Callable[[ExpertsSpec], object]) -> Callable[[ModelSpec], object]:
    def value(spec: ModelSpec) -> object:
        experts = first_experts(spec)
        return None if experts is None else get(experts)

    return value


def _theta(spec: ModelSpec) -> object:
    rope = first_rope(spec)
    return None if rope is None else float(rope.theta)


def _eps(spec: ModelSpec) -> object:
    return None if spec.final_norm is None else spec.final_norm.eps


def _embedding_factor(spec: ModelSpec) -> object:
    return None if spec.embedding_scale is None else spec.embedding_scale.factor


def _shared(experts: ExpertsSpec) -> object:
    return None if experts.shared is None else experts.shared.intermediate_size


def _shared_number(experts: ExpertsSpec) -> object:
    """As how many experts the one counts that all tokens are given to."""
    shared = experts.shared
    return 0 if shared is None else shared.intermediate_size // experts.intermediate_size


def _mixed_layers(spec: ModelSpec) -> list[int]:
    return [i for i, each in enumerate(spec.layers) if isinstance(each.mlp, ExpertsSpec)]


def _first_mixed(spec: ModelSpec) -> object:
    """The number of layers before the first with experts."""
    return next(iter(_mixed_layers(spec)), len(spec.layers))


def _mixed_interval(spec: ModelSpec) -> object:
    """Each how many layers there are experts, from the first on."""
    at = _mixed_layers(spec)
    return at[1] - at[0] if len(at) > 1 else 1


def _latent(get: Callable[[LatentSpec], object]) -> Callable[[ModelSpec], object]:
    def value(spec: ModelSpec) -> object:
        latent = described_attention(spec).latent
        return None if latent is None else get(latent)

    return value


def _net(get: Callable[[GatedDeltaSpec], object]) -> Callable[[ModelSpec], object]:
    def value(spec: ModelSpec) -> object:
        mixers = (each for layer in spec.layers for each in layer.mixers)
        net = next((each for each in mixers if isinstance(each, GatedDeltaSpec)), None)
        return None if net is None else get(net)

    return value


def _clip(spec: ModelSpec) -> object:
    clamp = described_attention(spec).clamp
    return None if clamp is None else clamp.limit


def _kernel(spec: ModelSpec) -> object:
    mixers = (each for layer in spec.layers for each in layer.mixers)
    return next((each.kernel for each in mixers if isinstance(each, ShortConvSpec)), None)


FIELDS: Final[Mapping[str, Callable[[ModelSpec], object]]] = {
    "hidden_size": lambda spec: spec.hidden_size,
    "intermediate_size": _intermediate,
    "num_hidden_layers": lambda spec: len(spec.layers),
    "num_attention_heads": lambda spec: described_attention(spec).num_heads,
    "num_key_value_heads": lambda spec: described_attention(spec).num_kv_heads,
    "max_position_embeddings": lambda spec: spec.max_positions,
    "head_dim": lambda spec: described_attention(spec).head_dim,
    "rope_theta": _theta,
    "rms_norm_eps": _eps,
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"), _eps),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        _of_experts(lambda experts: experts.num_experts),
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "moe_k", "top_k_experts"),
        _of_experts(lambda experts: experts.top_k),
    ),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts"), _of_experts(_shared_number)),
    **dict.fromkeys(
        ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"), _first_mixed
    ),
    **dict.fromkeys(("moe_layer_interval", "interleave_moe_layer_step"), _mixed_interval),
    "n_group": _of_experts(lambda experts: experts.routing.groups),
    "topk_group": _of_experts(lambda experts: experts.routing.groups_chosen),
    "norm_topk_prob": _of_experts(lambda experts: experts.routing.normalize),
    "routed_scaling_factor": _of_experts(lambda experts: float(experts.routing.scale)),
    "moe_intermediate_size": _of_experts(lambda experts: experts.intermediate_size),
    "shared_expert_intermediate_size": _of_experts(_shared),
    "attention_multiplier": lambda spec: described_attention(spec).scale,
    "embedding_multiplier": _embedding_factor,
    "residual_multiplier": lambda spec: spec.layers[0].residual_scale,
    "logits_scaling": lambda spec: 1 / spec.logits_scale,
    "logit_scale": lambda spec: spec.logits_scale,
    "use_parallel_residual": lambda spec: spec.layers[0].parallel,
    "rotary_emb_base": _theta,
    "n_inner": _intermediate,
    "intermediate_size_mlp": _dense_intermediate,
    "clip_qkv": _clip,
    "conv_L_cache": _kernel,
    "q_lora_rank": _latent(lambda latent: latent.q_rank),
    "kv_lora_rank": _latent(lambda latent: latent.kv_rank),
    "qk_rope_head_dim": _latent(lambda latent: latent.rope_dim),
    "linear_conv_kernel_dim": _net(lambda net: net.kernel),
    "linear_key_head_dim": _net(lambda net: net.key_dim),
    "linear_num_key_heads": _net(lambda net: net.key_heads),
    "linear_num_value_heads": _net(lambda net: net.value_heads),
}
"""What a model has of each value that the table of architectures names; None: it has no such
thing."""

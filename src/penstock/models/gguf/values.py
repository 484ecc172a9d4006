"""The fields of ``config.json`` that GGUF files have keys for, from a model's spec: the inverse of
what its family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.errors import ModelError
from penstock.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    MlpSpec,
    ModelSpec,
    RopeSpec,
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
    return described_attention(spec).rope


def first_mlp(spec: ModelSpec) -> MlpSpec | None:
    """The first MLP that is no mixture of experts."""
    return next((each.mlp for each in spec.layers if isinstance(each.mlp, MlpSpec)), None)


def first_experts(spec: ModelSpec) -> ExpertsSpec | None:
    return next((each.mlp for each in spec.layers if isinstance(each.mlp, ExpertsSpec)), None)


def _intermediate(spec: ModelSpec) -> object:
    mlp = first_mlp(spec) or first_experts(spec)
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
    "layer_norm_eps": _eps,
    "norm_epsilon": _eps,
    "num_experts": _of_experts(lambda experts: experts.num_experts),
    "num_experts_per_tok": _of_experts(lambda experts: experts.top_k),
    "moe_intermediate_size": _of_experts(lambda experts: experts.intermediate_size),
    "shared_expert_intermediate_size": _of_experts(_shared),
    "attention_multiplier": lambda spec: described_attention(spec).scale,
    "embedding_multiplier": _embedding_factor,
    "residual_multiplier": lambda spec: spec.layers[0].residual_scale,
    "logits_scaling": lambda spec: 1 / spec.logits_scale,
    "logit_scale": lambda spec: spec.logits_scale,
    "use_parallel_residual": lambda spec: spec.layers[0].parallel,
}
"""What a model has of each value that the table of architectures names; None: it has no such
thing."""

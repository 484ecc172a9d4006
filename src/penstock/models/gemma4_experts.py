"""Gemma 4's experts, which stand beside an MLP that every token is given to."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.models.blocks import read_activation
from penstock.models.limits import MAX_HIDDEN
from penstock.models.mixtures import (
    read_expert_size,
    read_num_experts,
    read_top_k,
)
from penstock.models.reader import ConfigReader
from penstock.models.spec import (
    ExpertNorms,
    ExpertsSpec,
    MlpSpec,
    NormSpec,
    Routing,
    SharedExpertSpec,
)


def read_mlps(
    config: ConfigReader, dense: Sequence[MlpSpec], norm: NormSpec
) -> list[MlpSpec | ExpertsSpec]:
    """The MLP of each layer, with experts beside it where the model has any."""
    if not config.boolean("enable_moe_block", False):
        return list(dense)
    number, size = read_num_experts(config), read_expert_size(config)
    top_k = read_top_k(config, number, "top_k_experts")
    hidden = config.integer("hidden_size", high=MAX_HIDDEN)
    activation = read_activation(config, "hidden_activation")
    return [
        ExpertsSpec(
            number,
            top_k,
            size,
            activation,
            Routing(share_scale=True),
            SharedExpertSpec(mlp.intermediate_size),
            norms=ExpertNorms(norm.eps, router_scale=hidden**-0.5),
        )
        for mlp in dense
    ]

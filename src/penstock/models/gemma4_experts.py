"""Gemma 4's experts, which stand beside an MLP that every token is given to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.models.blocks import read_activation
from penstock.models.limits import MAX_HIDDEN
from penstock.models.mixtures import (
    MLP,
    ROUTER,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
    together,
)
from penstock.models.names import Name, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import (
    ExpertNorms,
    ExpertsSpec,
    MlpSpec,
    NormSpec,
    Routing,
    SharedExpertSpec,
)

_AT: Final = "model.layers.*."
NAMES: Final = (
    plain(
        {
            ROUTER: _AT + "router.proj",
            "layers.*.experts_norm": _AT + "pre_feedforward_layernorm_2",
            "layers.*.experts_post_norm": _AT + "post_feedforward_layernorm_2",
            "layers.*.shared_post_norm": _AT + "post_feedforward_layernorm_1",
        }
    )
    | together(_AT + "experts")
    | shared_names(MLP)
    | {
        "layers.*.router_norm": Name(_AT + "router.scale", suffix=""),
        f"{ROUTER}.share_scale": Name(_AT + "router.per_expert_scale", suffix=""),
    }
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

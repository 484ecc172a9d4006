"""What families with mixtures of experts share: fields of their configurations, names of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.models.limits import MAX_EXPERTS, MAX_FACTOR, MAX_INTERMEDIATE
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import Name, NameMap, either, plain, stacked
from penstock.models.reader import ConfigReader
from penstock.models.spec import ExpertsSpec, ModelSpec, Routing

GATE, UP, DOWN = (f"layers.*.experts.{name}" for name in ("gate", "up", "down"))


def one_by_one(at: str, gate: str, up: str, down: str) -> dict[str, Name]:
    """The names of experts, numbered behind ``at``, that have a tensor for each matrix."""
    return plain({GATE: f"{at}.#.{gate}", UP: f"{at}.#.{up}", DOWN: f"{at}.#.{down}"})


def together(at: str) -> dict[str, Name]:
    """The names of experts whose matrices transformers keeps in two tensors, of which one has the
    gates and ups."""
    return stacked(f"{at}.gate_up_proj", GATE, UP) | stacked(f"{at}.down_proj", DOWN)


MLP: Final = "model.layers.*.mlp"
QWEN_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain({"layers.*.router": f"{MLP}.gate"})
    | either(
        one_by_one(f"{MLP}.experts", "gate_proj", "up_proj", "down_proj"),
        together(f"{MLP}.experts"),
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, and experts as Qwen2 and Qwen3 have them, OLMoE, GLM-4.5 and Ernie 4.5."""

_BLOCK: Final = "model.layers.*.block_sparse_moe"
MIXTRAL_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | either(
        plain({"layers.*.router": f"{_BLOCK}.gate"}) | one_by_one(f"{_BLOCK}.experts", "w1", "w3", "w2"),
        plain({"layers.*.router": f"{MLP}.gate"}) | together(f"{MLP}.experts"),
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, and experts as Mixtral has them, PhiMoE and MiniMax."""


def shared_names(at: str) -> dict[str, Name]:
    """The names of an expert that every token is given to."""
    return plain({f"layers.*.shared.{name}": f"{at}.{name}_proj" for name in ("gate", "up", "down")})


def read_num_experts(config: ConfigReader, *names: str) -> int:
    """The number of experts, which versions of transformers call differently."""
    given = [name for name in names if config.has(name)]
    for name in names:
        config.raw(name)
    if not given:  # the error names the first
        return config.integer(names[0], high=MAX_EXPERTS)
    number = config.integer(given[0], high=MAX_EXPERTS)
    for name in given[1:]:
        config.only(name, number, f"contradicts {given[0]} {number}")
    return number


def read_top_k(
    config: ConfigReader,
    num_experts: int,
    name: str = "num_experts_per_tok",
    default: int | None = None,
) -> int:
    """How many experts a token has."""
    return config.integer(name, default, high=num_experts)


def read_expert_size(config: ConfigReader, name: str = "moe_intermediate_size") -> int:
    return config.integer(name, high=MAX_INTERMEDIATE)


def read_scale(config: ConfigReader, name: str = "routed_scaling_factor") -> float:
    """What shares are multiplied by."""
    return config.number(name, 1.0, high=MAX_FACTOR)


def read_groups(config: ConfigReader, num_experts: int, top_k: int) -> tuple[int, int]:
    """The number of groups of experts, of which there are at least two in each, and how many of
    them are chosen from: DeepSeek's fields."""
    groups = config.integer("n_group", 1, high=num_experts)
    if num_experts % groups:
        raise config.error("n_group", f"must divide the {num_experts} experts into equal groups")
    size = num_experts // groups
    if groups > 1 and size < 2:
        raise config.error("n_group", "must leave at least two experts in a group")
    chosen = config.integer("topk_group", 1, high=groups)
    if top_k > chosen * size:
        raise config.error(
            "topk_group", f"times the {size} experts of a group must be at least the {top_k} chosen"
        )
    return groups, chosen


def corrected_routing(config: ConfigReader, num_experts: int, top_k: int) -> Routing:
    """DeepSeek V3's: sigmoids, chosen with a bias that corrects how often each expert is, from the
    groups whose two best are best."""
    groups, chosen = read_groups(config, num_experts, top_k)
    return Routing(
        scores="sigmoid",
        normalize=config.boolean("norm_topk_prob", True),
        normalize_eps=1e-20,
        scale=read_scale(config),
        groups=groups,
        groups_chosen=chosen,
        group_score="top2",
        choice_bias=True,
    )


def ignore_training(config: ConfigReader) -> None:
    """Take note of fields of routers that count in training alone."""
    for name in (
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "input_jitter_noise",
        "router_z_loss_coef",
    ):
        config.raw(name)


def with_experts(
    spec: ModelSpec, experts: ExpertsSpec, where: Callable[[int], bool] = lambda _: True
) -> ModelSpec:
    """``spec`` with a mixture of experts in the place of the MLP of those layers."""
    return replace(
        spec,
        layers=tuple(
            replace(layer, mlp=experts) if where(i) else layer
            for i, layer in enumerate(spec.layers)
        ),
    )

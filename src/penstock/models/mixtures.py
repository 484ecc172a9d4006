"""What families with mixtures of experts share: configurations' fields, names of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.models.limits import MAX_EXPERTS, MAX_FACTOR, MAX_INTERMEDIATE
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.name_forms import Kept
from penstock.models.names import Name, NameMap, either, plain, stacked
from penstock.models.reader import ConfigReader
from penstock.models.spec import ExpertsSpec, ModelSpec, Routing

TRAINING: Final = (
    "input_jitter_noise",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",  # but PhiMoE reads it
)
"""Fields of routers that count in training alone."""

ROUTER: Final = "layers.*.router"
CHOICE_BIAS: Final = f"{ROUTER}.choice_bias"
GATE, UP, DOWN = (f"layers.*.experts.{name}" for name in ("gate", "up", "down"))
MLP: Final = "model.layers.*.mlp"
BLOCK: Final = "model.layers.*.block_sparse_moe"


def one_by_one(at: str, gate: str, up: str, down: str) -> dict[str, Name]:
    """The names of experts, numbered behind ``at``, that have a tensor for each matrix."""
    return plain({GATE: f"{at}.#.{gate}", UP: f"{at}.#.{up}", DOWN: f"{at}.#.{down}"})


def together(at: str, transposed: bool = False) -> dict[str, Name]:
    """The names of experts whose matrices transformers keeps in two tensors, gates and ups in one;
    so it saves them where it is told not to restore the original format."""
    kept: Kept = "columns" if transposed else "rows"
    gates_and_ups = stacked(f"{at}.gate_up_proj", GATE, UP, kept=kept)
    return gates_and_ups | stacked(f"{at}.down_proj", DOWN, kept=kept)


def shared_names(at: str) -> dict[str, Name]:
    """The names of an expert that every token is given to."""
    names = ("gate", "up", "down")
    return plain({f"layers.*.shared.{name}": f"{at}.{name}_proj" for name in names})


QWEN_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain({ROUTER: f"{MLP}.gate"})
    | either(
        one_by_one(f"{MLP}.experts", "gate_proj", "up_proj", "down_proj"),
        together(f"{MLP}.experts"),
        together(f"{MLP}.experts", transposed=True),  # the language models of Qwen3-VL
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, and experts as Qwen2 and Qwen3 have them, OLMoE, GLM-4.5 and Ernie 4.5."""

MIXTRAL_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | either(
        plain({ROUTER: f"{BLOCK}.gate"}) | one_by_one(f"{BLOCK}.experts", "w1", "w3", "w2"),
        plain({ROUTER: f"{MLP}.gate"}) | together(f"{MLP}.experts"),
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, and experts as Mixtral has them, and MiniMax."""


def read_num_experts(config: ConfigReader, name: str = "num_experts") -> int:
    return config.integer(name, high=MAX_EXPERTS)


def read_top_k(config: ConfigReader, num_experts: int, name: str = "num_experts_per_tok") -> int:
    """How many experts a token has."""
    return config.integer(name, high=num_experts)


def read_expert_size(config: ConfigReader, name: str = "moe_intermediate_size") -> int:
    return config.integer(name, high=MAX_INTERMEDIATE)


def read_corrected_routing(config: ConfigReader, num_experts: int, top_k: int) -> Routing:
    """DeepSeek V3's: sigmoids, chosen with a bias that corrects how often each expert is, from the
    groups whose two best are best."""
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
    return Routing(
        scores="sigmoid",
        normalize=config.boolean("norm_topk_prob", True),
        normalize_eps=1e-20,
        scale=config.number("routed_scaling_factor", 1.0, high=MAX_FACTOR),
        groups=groups,
        groups_chosen=chosen,
        group_score="top2",
        choice_bias=True,
    )


def with_experts(
    model: ModelSpec, experts: ExpertsSpec, where: Callable[[int], bool] = lambda _: True
) -> ModelSpec:
    """The model with a mixture of experts in the place of the MLP of those layers."""
    layers = tuple(
        replace(layer, mlp=experts) if where(i) else layer for i, layer in enumerate(model.layers)
    )
    return replace(model, layers=layers)

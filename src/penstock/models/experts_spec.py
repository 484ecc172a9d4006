"""A mixture of experts as data: how tokens are routed, and what the experts are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from penstock.errors import ModelError
from penstock.models.activation import Gating

Scores = Literal["softmax", "softmax_chosen", "sigmoid", "sparsemixer"]


@dataclass(frozen=True)
class Routing:
    """How the experts of a token are chosen, and what the share of each is.

    :class:`penstock.plan.ops.Route` says what is computed. A router, a matrix with or without a
    bias, gives each expert a logit. Scores are made of the logits; the experts with the highest
    scores are chosen; their shares are their scores, normalized and scaled.
    """

    scores: Scores = "softmax"
    """``softmax`` over all experts, ``softmax_chosen`` over the chosen ones, whose logits decide;
    ``sigmoid`` of each by itself; or PhiMoE's ``sparsemixer``, which chooses one after another,
    each with its share of a softmax over the experts that come close to it."""
    normalize: bool = True
    """Whether shares are divided by their sum."""
    normalize_eps: float = 0.0
    """Added to that sum."""
    normalize_least: float = 0.0
    """What that sum counts as at least."""
    scale: float = 1.0
    """What shares are multiplied by in the end."""
    groups: int = 1
    """Equal runs of experts, of which only ``groups_chosen`` are chosen from."""
    groups_chosen: int = 1
    group_score: Literal["max", "top2"] = "max"
    """Groups are chosen by their highest score, or by the sum of their two highest."""
    bias: bool = False
    """Whether the router has a bias."""
    choice_bias: bool = False
    """Whether scores get a bias, in float32, that only choices see and no share."""
    share_scale: bool = False
    """Whether shares are multiplied in the end by numbers of their experts, which are learned."""
    jitter: float = 0.0
    """``sparsemixer`` alone: experts take part in the softmax of another whose logit is at most
    twice this, relative to theirs, below the other's."""

    def __str__(self) -> str:
        """What the scores are, and whatever else is not as it is by default."""
        usual = Routing(self.scores)
        names = (field.name for field in fields(self))
        values = ((name, getattr(self, name)) for name in names)
        return " ".join([self.scores, *(f"{n}={v}" for n, v in values if v != getattr(usual, n))])


@dataclass(frozen=True)
class SharedExpertSpec:
    """An MLP that every token is given to besides, with the activation of the others, and gated
    where they are."""

    intermediate_size: int
    bias: bool = False
    gated: bool = False
    """Whether its output is multiplied by the sigmoid of a product of the token with one row."""


@dataclass(frozen=True)
class ExpertNorms:
    """RMS norms of experts that stand beside a shared one and not behind its norm (Gemma 4).

    Router and routed experts then read the residual stream, each by a norm of its own: weights
    ``router_norm`` and ``experts_norm``. What the routed experts and what the shared one make is
    normed before it is added up: ``experts_post_norm`` and ``shared_post_norm``. The shared one
    reads what an MLP would.
    """

    eps: float
    router_scale: float
    """What logits are multiplied by."""


@dataclass(frozen=True)
class ExpertsSpec:
    """A mixture of MLPs: each token is given to ``top_k`` of them, whose outputs are added.

    Raises ModelError where experts or groups cannot be chosen as the routing says, and for
    activations that experts without gates do not have.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    """Width of one expert."""
    activation: Gating = "silu"
    routing: Routing = Routing()
    shared: SharedExpertSpec | None = None
    bias: bool = False
    """Whether the matrices of experts have biases."""
    shares_on: Literal["outputs", "inputs"] = "outputs"
    """Whether the outputs of a token's experts are multiplied by their shares, or what they are
    given of the token."""
    gates: bool = True
    """Whether experts are gated: ``down(activation(gate(x)) * up(x))``, else
    ``down(activation(up(x)))``."""
    latent: int | None = None
    """Experts read a product of the token of this size (weight ``latent_in``), and what they make
    together goes through another (``latent_out``). None: they read the token itself."""
    latent_bias: bool = False
    """Whether these products have biases."""
    norms: ExpertNorms | None = None
    """None: all experts and the router read what an MLP would."""

    def __post_init__(self) -> None:
        if not self.gates and not isinstance(self.activation, str):
            raise ModelError("experts without gates have no clamped SwiGLU")
        r, size = self.routing, self.num_experts // max(self.routing.groups, 1)
        if not 1 <= self.top_k <= self.num_experts:
            raise ModelError(
                f"a token cannot have {self.top_k} of {self.num_experts} experts; it has at least "
                "one and at most all"
            )
        if r.groups < 1 or self.num_experts % r.groups:
            raise ModelError(
                f"{self.num_experts} experts do not divide into {r.groups} equal groups"
            )
        if not 1 <= r.groups_chosen <= r.groups or self.top_k > r.groups_chosen * size:
            raise ModelError(
                f"a token cannot have {self.top_k} experts out of {r.groups_chosen} of {r.groups} "
                f"groups of {size}"
            )
        if r.groups > 1 and r.group_score == "top2" and size < 2:
            raise ModelError("groups of one expert have no two highest scores")
        if self.norms is not None and self.shared is None:
            raise ModelError("experts with norms of their own stand beside a shared one")
        if r.scores == "sparsemixer" and (r.groups > 1 or r.choice_bias):
            raise ModelError("sparsemixer chooses among all experts, and by their logits alone")

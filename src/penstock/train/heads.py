"""What all heads that draft have in common while they are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

DECAY: Final = 0.8
"""Weight of a position's loss relative to the one before: later drafts are verified less often."""


_ROWS: Final = 128
"""Of logits, that the loss takes at a time."""


@dataclass(frozen=True)
class Observed:
    """What a frozen target says of ``B`` windows of ``T`` tokens."""

    tokens: Tensor
    """int64 ``[B, T]``."""
    hidden: Tensor
    """float32 ``[B, T, H]``, after the final norm: what the target's output matrix reads."""
    taps: Tensor
    """float32 ``[B, T, len(layers) * H]``: the residual stream at the input of tapped layers."""
    logits: Tensor
    """``[B, T, V]``; those of position ``t`` tell token ``t + 1``."""


@dataclass(frozen=True)
class Guesses:
    """What heads drafted for one position ahead, beside what the target chooses there."""

    drafted: Tensor
    """int64 ``[N]``, the likeliest token of the head."""
    chosen: Tensor
    """int64 ``[N]``, the target's greedy choice."""


class Heads(nn.Module, ABC):
    """Modules that draft from what a target computed. The target itself is never changed."""

    layers: tuple[int, ...] = ()
    """Layers of the target whose input :attr:`Observed.taps` must hold."""
    weights_file: str = "model.safetensors"

    @abstractmethod
    def loss(self, observed: Observed) -> Tensor:
        """Scalar to be made smaller."""

    @abstractmethod
    def guess(self, observed: Observed) -> list[Guesses]:
        """The drafts for each position ahead, the nearest first."""

    @abstractmethod
    def linear_pairs(self, observed: Observed) -> list[tuple[Tensor, Tensor]]:
        """``(x [..., A], y [..., B])``: what :meth:`start_from` wants linear maps from and to."""

    @abstractmethod
    def start_from(self, maps: list[Tensor]) -> None:
        """Take on the map ``[B, A]`` of each pair, before the first step."""

    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """What ``config.json`` says."""

    @abstractmethod
    def published(self) -> Mapping[str, Tensor]:
        """Every tensor of the checkpoint under the name that readers of this form look for."""


def soft_cross_entropy(logits: Tensor, wanted: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean over rows of the cross entropy against distributions, in nats.

    ``logits`` and ``wanted`` are ``[..., V]``; each row of ``wanted`` sums to one. ``counted``,
    bool ``[...]``, leaves rows out; if none is left the loss is zero. Gradients reach ``logits``.
    """
    rows = logits.shape[:-1].numel()
    share = torch.full((rows,), 1.0 / rows, device=logits.device)
    if counted is not None:
        weight = counted.flatten().float()
        share = weight / weight.sum().clamp(min=1.0)
    loss: Tensor = _SoftCrossEntropy.apply(logits.flatten(0, -2), wanted.flatten(0, -2), share)  # type: ignore[no-untyped-call]
    return loss


class _SoftCrossEntropy(torch.autograd.Function):
    """Loss and gradient in one pass over some rows at a time, which then stay in a CPU's caches.

    Made of torch's own ops, the loss took half of a Medusa step: float32 copies of all logits,
    each read from memory several times.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, share: Tensor) -> Tensor:
        """``logits`` and ``wanted`` ``[N, V]``; ``share`` float32 ``[N]``, each row's weight."""
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        for some in torch.arange(len(logits)).split(_ROWS):
            rows = slice(int(some[0]), int(some[-1]) + 1)
            scores, aim, weight = logits[rows].float(), wanted[rows].float(), share[rows, None]
            normalizer = scores.logsumexp(-1, keepdim=True)
            total += (weight * (normalizer - (aim * scores).sum(-1, keepdim=True))).sum()
            gradient[rows] = scores.sub_(normalizer).exp_().sub_(aim).mul_(weight)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None


def frozen(weight: Tensor) -> Tensor:
    """A float32 copy of one of the target's weights, to start from or to read."""
    return weight.detach().to(torch.float32, copy=True)

"""What all heads that draft have in common while they are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

DECAY: Final = 0.8
"""Weight of a position's loss relative to the one before: later drafts are verified less often."""


_ROWS: Final = 128
"""Rows of logits that the loss processes at a time."""


@dataclass(frozen=True)
class Observed:
    """What a frozen target computes for ``B`` windows of ``T`` tokens."""

    tokens: Tensor
    """int64 ``[B, T]``."""
    hidden: Tensor
    """float32 ``[B, T, H]``, after the final norm: what the target's output matrix reads."""
    taps: Tensor
    """float32 ``[B, T, len(layers) * H]``: the residual stream at the input of tapped layers."""
    logits: Tensor
    """``[B, T, V]``; the logits of position ``t`` predict token ``t + 1``."""


@dataclass(frozen=True)
class Readout:
    """How a target makes logits of hidden states: ``scale * (weight @ x + bias)``, capped."""

    weight: Tensor
    """``[V, H]``."""
    bias: Tensor | None = None
    """``[V]``."""
    scale: float = 1.0
    softcap: float | None = None
    """Logits become ``softcap * tanh(logits / softcap)``."""

    def frozen(self) -> Readout:
        """A copy in float32."""
        bias = None if self.bias is None else frozen(self.bias)
        return replace(self, weight=frozen(self.weight), bias=bias)

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., H]``."""
        logits = nn.functional.linear(x, self.weight, self.bias)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


@dataclass(frozen=True)
class Guesses:
    """The drafts of heads for one position ahead, and the target's choices there."""

    drafted: Tensor
    """int64 ``[N]``, the head's likeliest tokens."""
    chosen: Tensor
    """int64 ``[N]``, the target's greedy choice."""


class Heads(nn.Module, ABC):
    """Modules that draft from what a target computed. The target itself is never changed."""

    layers: tuple[int, ...] = ()
    """Layers of the target whose input :attr:`Observed.taps` must hold."""
    weights_file: str = "model.safetensors"

    @abstractmethod
    def loss(self, observed: Observed) -> Tensor:
        """Return the scalar to minimize."""

    @abstractmethod
    def guess(self, observed: Observed) -> list[Guesses]:
        """Return the drafts for each position ahead, nearest first."""

    @abstractmethod
    def linear_pairs(self, observed: Observed) -> list[tuple[Tensor, Tensor]]:
        """Return pairs ``(x [..., A], y [..., B])`` for which :meth:`start_from` wants linear maps
        from x to y."""

    @abstractmethod
    def start_from(self, maps: list[Tensor]) -> None:
        """Initialize the heads from the map ``[B, A]`` of each pair, before the first step."""

    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """Return the contents of ``config.json``."""

    @abstractmethod
    def published(self) -> Mapping[str, Tensor]:
        """Return every tensor of the checkpoint, under the names that readers of this format
        expect."""


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

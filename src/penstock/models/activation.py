"""What MLPs put between their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "sigmoid", "identity"]
"""``relu2`` is the square of ``relu``. ``identity`` changes nothing: gated by it, an up is
multiplied by the gate itself."""

UngatedActivation = Activation | Literal["xielu"]
"""The activations of MLPs without a gate. xIELU (``plan.ops.Xielu``) has four numbers of the
layer: weights ``act_p``, ``act_n``, ``act_beta`` and ``act_eps``."""


@dataclass(frozen=True)
class ClampedSwiglu:
    """``(u + 1) * g * sigmoid(alpha * g)`` with ``g = min(gate, limit)`` and u = up, clamped to
    ``-limit .. limit``.

    In float32, in the order ``(u + 1) * (g * (1 / (1 + exp(-(alpha * g)))))``. NaN stays NaN.
    """

    limit: float
    alpha: float


Gating = Activation | ClampedSwiglu
"""What becomes of a gate and an up: ``activation(gate) * up``, or :class:`ClampedSwiglu`."""

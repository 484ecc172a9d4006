"""What a model loses where some of its matrices alone are rounded.

Cai et al., ZeroQ: A Novel Zero Shot Quantization Framework, 2020 (arXiv 2001.00281): matrices are
rounded one after another, each time with all others as they are, and the divergence of what the
model predicts then (Kullback and Leibler) says how sensitive it is to them. Losses of several are
taken for the sum of those of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.quantize.layers import Target

FLOATS: Final = 16
"""What stands for matrices that stay as they are, among numbers of bits."""


@dataclass(frozen=True)
class Unit:
    """Matrices that engines may multiply as one, and that have the same bits for that."""

    layer: int
    targets: tuple[Target, ...]


class Sensitivity(msgspec.Struct, frozen=True):
    """What is lost by rounding the matrices of one unit to nearest, by bits."""

    modules: tuple[str, ...]
    errors: dict[int, float]
    """Squared errors of all outputs of the matrices, as the Hessian of what they multiply has
    them."""
    divergences: dict[int, float]
    """Nats a token, of the bits for which they were measured."""

    def loss(self, bits: int) -> float:
        """Nats a token.

        Where they were not measured, they are those of the nearest bits that were, by the ratio of
        squared errors: a divergence grows with the square of what causes it, as long as that is
        small.
        """
        if bits == FLOATS:
            return 0.0
        if bits in self.divergences:
            return self.divergences[bits]
        near = min(self.divergences, key=lambda each: (abs(each - bits), each))
        whole = self.errors[near]
        return self.divergences[near] * self.errors[bits] / whole if whole else 0.0


class Sweep(msgspec.Struct, frozen=True):
    """The sensitivities of all units of a model."""

    windows: int
    """Samples that were read."""
    rows: int
    """Tokens of each whose predictions were compared."""
    units: tuple[Sensitivity, ...]


def measured_bits(allowed: tuple[int, ...]) -> tuple[int, ...]:
    """The bits for which divergences are measured: with 8 hardly anything changes but the rounding
    of activations, which hides it."""
    few = tuple(bits for bits in allowed if bits < 8)
    return few or tuple(bits for bits in allowed if bits != FLOATS)

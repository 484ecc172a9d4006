"""Distributions of the next token, of one row of logits each.

Of 262,144 logits, exponentials in float64 take 2.6 ms on Zen 3, and 0.6 ms in float32. In float32,
and summed in float64, they change losses and divergences by less than 1e-6 nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelError


@dataclass(frozen=True)
class Distribution:
    """What a row of logits says of the next token."""

    relative: NDArray[np.float64]
    """``[vocab_size]``: logits, the largest of them taken off."""
    weights: NDArray[np.float32]
    """Their exponentials: probabilities times ``total``."""
    total: float
    """The sum of ``weights``."""

    @classmethod
    def of(cls, logits: NDArray[np.float32]) -> Distribution:
        """Raises ModelError where the logits have no distribution."""
        relative = logits.astype(np.float64)
        with np.errstate(invalid="ignore"):
            relative -= relative.max()
        weights = np.exp(relative.astype(np.float32))
        total = float(weights.sum(dtype=np.float64))
        if np.isnan(total):
            raise ModelError(
                "the model's logits are not numbers; its weights may be damaged, or, if it runs in "
                "16 bits, its activations exceed what these hold: --dtype float32"
            )
        return cls(relative, weights, total)

    @property
    def likeliest(self) -> int:
        return int(self.relative.argmax())

    def loss(self, token: int) -> float:
        """Minus the logarithm of a token's probability, in nats."""
        return float(np.log(self.total) - self.relative[token])

    def divergence(self, other: Distribution) -> float:
        """Nats by which a code by ``other`` is longer than one by this distribution, which draws
        the tokens (Kullback and Leibler). What is impossible here costs nothing."""
        with np.errstate(invalid="ignore"):
            apart = self.relative - other.relative
            mean = float((self.weights * apart).sum()) / self.total
        if np.isnan(mean):  # impossible tokens are infinitely far from possible ones
            possible = self.weights > 0
            mean = float((self.weights[possible] * apart[possible]).sum()) / self.total
        return max(mean + float(np.log(other.total / self.total)), 0.0)


def token_losses(logits: NDArray[np.float32], targets: Sequence[int]) -> NDArray[np.float64]:
    """The loss of each row's target, in nats. Raises ModelError where logits are not numbers."""
    rows = zip(logits, targets, strict=True)
    return np.array([Distribution.of(row).loss(target) for row, target in rows])

"""The labels of a model that classifies, and what its logits say of them."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

LabelActivation = Literal["softmax", "sigmoid", "none"]
"""How logits become what is answered. softmax: exactly one label holds; sigmoid: each holds or does
not, whatever the others do; none: they are answered as they are, as of a regression."""


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that classifies tells texts by.

    The choice of ``activation`` is transformers' (``problem_type``) and, where a configuration says
    nothing, vLLM's: sigmoid for one label, softmax for several.
    """

    names: tuple[str, ...]
    activation: LabelActivation
    relevance: int | None = None
    """Which label's value is the score of a pair of texts; None: none is, and the model scores no
    pairs."""

    def values(self, logits: bytes, activated: bool = True) -> list[float]:
        """A value for each label of its ``logits``, little-endian float32
        (:data:`~penstock.pooling.pooler.EMBEDDING_DTYPE`); as they are unless ``activated``."""
        x = np.frombuffer(logits, "<f4").astype(np.float64)
        if activated and self.activation == "softmax":
            x = np.exp(x - x.max())
            x /= x.sum()
        elif activated and self.activation == "sigmoid":
            x = _sigmoid(x)
        values: list[float] = x.tolist()
        return values

    def likeliest(self, values: list[float]) -> str:
        """The name of the label with the largest of ``values``, the first of several."""
        return self.names[max(range(len(values)), key=values.__getitem__)]

    def score(self, logits: bytes, activated: bool = True) -> float:
        """The score of a pair of texts, for models that have one: the value of the relevant label.

        Of two labels that exclude each other, what is not ``activated`` is the difference of their
        logits: the number whose sigmoid the score is.
        """
        assert self.relevance is not None
        values = self.values(logits, activated)
        if activated or len(values) != 2:
            return values[self.relevance]
        return values[self.relevance] - values[1 - self.relevance]


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """``1 / (1 + exp(-x))``, without overflow."""
    small = np.exp(-np.abs(x))
    result: NDArray[np.float64] = np.where(x >= 0, 1 / (1 + small), small / (1 + small))
    return result

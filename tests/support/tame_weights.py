"""Weights of any plan, drawn by their names."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.plan.plan import Plan


class TameWeights:
    """A WeightSource of a plan's weights, so small that models without norms do not blow up."""

    def __init__(self, plan: Plan) -> None:
        self._weights = plan.weights

    def names(self) -> Iterable[str]:
        return self._weights

    def get(self, name: str) -> NDArray[Any]:
        """The weight, or a rank's rows of one."""
        weight = self._weights[name]
        if weight.share is not None:
            return weight.share.of(self._whole(weight.share.name, weight.share.shape))
        return self._whole(name, weight.shape)

    def member(self, name: str, index: int) -> NDArray[Any]:
        matrix: NDArray[Any] = self.get(name)[index]
        return matrix

    @staticmethod
    def _whole(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        if len(shape) > 1:
            values /= np.sqrt(shape[-1])
        elif not name.endswith(("bias", "sinks")):
            values = 1 + values / 10
        return values.astype(np.float32)

"""Squared gradients of a model's loss by its weights: the diagonal of the empirical Fisher
information, which says how sensitive predictions are to each weight.

transformers runs the model, forwards and backwards, in float32. So this alone of what quantizes
needs torch, and memory for the whole model three times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from penstock.errors import ConfigError, WeightError
from penstock.quantize.grid import F32
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel


class SquaredGradients:
    """Squared gradients by each weight, of the matrices that are asked for, computed for all of
    them at once where one is first asked for."""

    def __init__(self, source: SourceModel, samples: Samples) -> None:
        """Raises ConfigError where what computes them is not installed."""
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "--sensitivity gradients needs torch and transformers: pip install "
                "'penstock[train]', or take --sensitivity inputs"
            ) from error
        self._source, self._samples = source, samples

    def of(self, name: str) -> F32:
        """Those of a matrix ``[n, k]``, summed over the samples, each of which is squared by
        itself. Raises WeightError where they are not finite."""
        stored = self._source.stored_name(name)
        if stored not in self._all:
            raise WeightError(
                f"transformers has no weight {stored}, so there are no gradients of it; take "
                "--sensitivity inputs"
            )
        found = self._all[stored]
        if not np.isfinite(found).all():
            raise WeightError(
                f"gradients by {name} are not finite for this text: the model overflows; take "
                "--sensitivity inputs"
            )
        return found

    @cached_property
    def _all(self) -> Mapping[str, F32]:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(self._source.folder, dtype=torch.float32)
        model.eval()
        model.config.use_cache = False
        matrices = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.ndim == 2 and name in self._names
        }
        for weight in model.parameters():
            weight.requires_grad_(False)
        for weight in matrices.values():
            weight.requires_grad_(True)
        sums = {name: torch.zeros_like(weight) for name, weight in matrices.items()}
        for tokens in self._samples.tokens:
            _backward(model, tokens)
            for name, weight in matrices.items():
                if weight.grad is not None:
                    sums[name] += weight.grad.square()
                    weight.grad = None
        return {name: each.numpy() for name, each in sums.items()}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(map(self._source.stored_name, self._source.tensors))


def _backward(model: Any, tokens: Sequence[int]) -> None:
    """Add the gradients of what one sample costs."""
    import torch

    ids = torch.tensor([tokens])
    model(input_ids=ids, labels=ids).loss.backward()

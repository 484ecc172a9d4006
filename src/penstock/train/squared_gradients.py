"""Squared gradients of a model's loss by its weights: the diagonal of the empirical Fisher
information, which says how sensitive predictions are to each weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM


def squared_gradients(
    folder: Path, samples: Sequence[Sequence[int]], names: Collection[str]
) -> dict[str, NDArray[np.float32]]:
    """Squared gradients by each weight of the matrices ``names``, as far as the checkpoint has
    them, summed over samples of token ids, each of which is squared by itself.

    transformers runs the model, forwards and backwards, in float32: memory holds it three times.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    model.config.use_cache = False
    matrices = {
        name: weight
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and name in names
    }
    for weight in model.parameters():
        weight.requires_grad_(False)
    for weight in matrices.values():
        weight.requires_grad_(True)
    sums = {name: torch.zeros_like(weight) for name, weight in matrices.items()}
    for tokens in samples:
        ids = torch.tensor([tokens])
        model(input_ids=ids, labels=ids).loss.backward()
        for name, weight in matrices.items():
            if weight.grad is not None:
                sums[name] += weight.grad.square()
                weight.grad = None
    return {name: each.numpy() for name, each in sums.items()}

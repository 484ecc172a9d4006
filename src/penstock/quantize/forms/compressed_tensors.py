"""Integers as compressed-tensors packs them (``pack-quantized``), which vLLM and transformers read.

A matrix ``[n, k]`` is ``weight_packed`` int32 ``[n, k * bits / 32]``, ``weight_scale``
``[n, groups]``, ``weight_shape`` and, where the grid is not symmetric, ``weight_zero_point`` int32
``[n * bits / 32, groups]``. ``weight_g_idx`` int32 ``[k]`` has the group of each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.models.compressed_tensors import METHOD
from penstock.models.spec import DType
from penstock.quantize.forms.form import Arrays
from penstock.quantize.forms.words import words
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.weights.tensor_file import NUMPY_DTYPES

PACKED: Final = "pack-quantized"


def scale_dtype(weights: DType) -> DType:
    """The weights' own."""
    return weights


def config(grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
    """One group, of all modules of layers."""
    return config_of({"group_0": group(grid, ["Linear"], by_index)}, floats)


def mixed_config(
    groups: Sequence[tuple[IntegerGrid, Sequence[str]]], by_index: bool, floats: Sequence[str]
) -> dict[str, object]:
    """A group for each grid, of the modules that it names: engines ask a class only after names,
    but for matrices that they join, whose class would come first."""
    named = {f"group_{i}": group(*each, by_index) for i, each in enumerate(groups)}
    return config_of(named, floats)


def group(grid: IntegerGrid, targets: Sequence[str], by_index: bool = False) -> dict[str, object]:
    """The group of what ``targets`` name."""
    weights: dict[str, object] = {
        "num_bits": grid.bits,
        "type": "int",
        "symmetric": grid.symmetric,
        "strategy": "channel" if grid.group_size is None else "group",
        "group_size": grid.group_size,
        "actorder": "group" if by_index else None,
        "dynamic": False,
    }
    return {"targets": list(targets), "weights": weights, "input_activations": None}


def config_of(groups: dict[str, dict[str, object]], floats: Sequence[str]) -> dict[str, object]:
    """``quantization_config`` with these groups, of packed integers, beside modules in floats."""
    return {
        "quant_method": METHOD,
        "format": PACKED,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(floats),
    }


def arrays(matrix: IntegerMatrix) -> Arrays:
    """The tensors of a matrix."""
    grid = matrix.grid
    stored = {
        "weight_packed": words(matrix.codes, grid.bits),
        "weight_scale": matrix.scales.astype(NUMPY_DTYPES[grid.scale_dtype]),
        "weight_shape": np.array(matrix.codes.shape, np.int64),
    }
    if not grid.symmetric:
        stored["weight_zero_point"] = words(matrix.zeros.T, grid.bits).T
    if matrix.group_of is not None:
        stored["weight_g_idx"] = matrix.group_of
    return stored

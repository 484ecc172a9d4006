"""Integers of 8 bits with a scale for each row, as compressed-tensors stores them unpacked
(``int-quantized``), where engines round what matrices multiply to 8 bits, each token by its largest
value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.models.compressed_tensors import METHOD
from penstock.models.spec import DType
from penstock.quantize.forms.form import Arrays
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.weights.tensor_file import NUMPY_DTYPES


def scale_dtype(weights: DType) -> DType:
    """The weights' own."""
    return weights


def config(grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
    """One group, of all modules of layers."""
    shared: dict[str, object] = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": METHOD,
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(floats),
    }


def arrays(matrix: IntegerMatrix) -> Arrays:
    """The tensors of a matrix."""
    signed = matrix.codes.astype(np.int16) - matrix.grid.middle
    return {
        "weight": signed.astype(np.int8),
        "weight_scale": matrix.scales.astype(NUMPY_DTYPES[matrix.grid.scale_dtype]),
    }

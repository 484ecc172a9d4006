"""Integers as GPTQ's tools store them (:mod:`penstock.models.gptq` says how)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from penstock.models.gptq import METHOD
from penstock.models.spec import DType
from penstock.quantize.forms.form import Arrays
from penstock.quantize.forms.words import words
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.weights.tensor_file import NUMPY_DTYPES


def scale_dtype(weights: DType) -> DType:
    """float16, whatever the weights have: what the tools' kernels read."""
    return "float16"


def config(grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
    """The first version of the format stores zero points less one, and so none of 0: only a
    symmetric grid has it."""
    version = "gptq" if grid.symmetric else "gptq_v2"
    made: dict[str, object] = {
        "quant_method": METHOD,
        "bits": grid.bits,
        "group_size": grid.group_size or -1,
        "sym": grid.symmetric,
        "desc_act": by_index,
        "static_groups": not by_index,
        "checkpoint_format": version,
        "lm_head": False,
    }
    if floats:
        made["dynamic"] = {f"-:^{re.escape(module)}$": {} for module in floats}
    return made


def arrays(matrix: IntegerMatrix) -> Arrays:
    """The tensors of a matrix."""
    grid = matrix.grid
    k = matrix.codes.shape[1]
    group_of = matrix.group_of
    if group_of is None:
        group_of = np.arange(k, dtype=np.int32) // (grid.group_size or k)
    zeros = matrix.zeros.T - int(grid.symmetric)
    return {
        "qweight": words(matrix.codes, grid.bits).T,
        "qzeros": words(zeros, grid.bits),
        "scales": matrix.scales.T.astype(NUMPY_DTYPES[grid.scale_dtype]),
        "g_idx": group_of,
    }

"""SmoothQuant's search beside brute force, and checkpoints that it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.quantized_checkpoints import logits

from penstock.backends.gram import Gram
from penstock.backends.registry import backend
from penstock.quantize.forms import w8a8
from penstock.quantize.forms.integers import Integers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.methods import RoundToNearest, SmoothQuant
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.smoothquant import POWERS, smoothing_factors
from penstock.quantize.source import SourceModel

Floats = np.ndarray[Any, Any]
K = 96
GRID = IntegerGrid(8, None, True, "float32")
FORM = Integers(GRID, w8a8)


def inputs() -> Floats:
    """Rows in which a few columns are fifty times as large as the others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, K)).astype(np.float32)
    x[:, ::24] *= 50
    return x


def matrix() -> Floats:
    return np.random.default_rng(1).normal(size=(32, K)).astype(np.float32)


def seen() -> Hessian:
    hessian = Hessian(K, Gram())
    for text in np.split(inputs(), 10):
        hessian.add(text)
    return hessian


def product(x: Floats, weights: Floats) -> Floats:
    """With both sides in 8 bits, each row by its largest value."""
    scales = np.abs(x).max(axis=1, keepdims=True) / 127
    rounded = FORM.round(weights.astype(np.float32), "m").dequantize()
    return np.round(x / scales) * scales @ rounded.T


def test_the_power_is_the_one_that_loses_least() -> None:
    x, weights = inputs(), matrix()
    found = smoothing_factors([weights[:10], weights[10:]], GRID, seen())
    assert found is not None
    exact = x.astype(np.float64) @ weights.T
    losses = {None: np.square(product(x, weights) - exact).sum()}
    for power in POWERS:
        factors = np.abs(x).max(0) ** power / np.abs(weights).max(0) ** (1 - power)
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        losses[power] = np.square(product(x / factors, weights * factors) - exact).sum()
    best = min(losses, key=losses.__getitem__)
    assert best is not None
    assert losses[best] < 0.2 * losses[None]
    reached = np.square(product(x / found, weights * found) - exact).sum()
    assert reached == pytest.approx(losses[best], rel=0.02)


def test_zeros_have_no_factors() -> None:
    hessian = Hessian(K, Gram())
    hessian.add(np.zeros((4, K), np.float32))
    assert smoothing_factors([matrix()], GRID, hessian) is None
    assert smoothing_factors([np.zeros_like(matrix())], GRID, seen()) is None


def test_inputs_of_any_size_have_finite_factors() -> None:
    """The largest and the smallest factor may have a product that float32 has no room for."""
    for size in (1e-30, 1e20):
        hessian = Hessian(K, Gram())
        hessian.add(inputs() * np.float32(size))
        with np.errstate(divide="raise", invalid="raise"):
            found = smoothing_factors([matrix().astype(np.float32)], GRID, hessian)
        assert found is None or np.isfinite(found).all()


def test_a_checkpoint_says_that_activations_are_rounded(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", intermediate_size=96)
    rows = np.random.default_rng(3).integers(0, 301, (8, 40)).tolist()
    samples = Samples(tuple(map(tuple, rows)), "eight windows")
    exact = logits(folder)
    for name, method in {"rtn": RoundToNearest(FORM), "smooth": SmoothQuant(FORM)}.items():
        calibrated = samples if method.calibrated else None
        work = Quantization(SourceModel(folder), method, calibrated)
        quantize(work, tmp_path / name, backend("reference").bind, 1)
        group = json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        assert group["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"
        error = np.square(logits(tmp_path / name, activations=True) - exact).mean()
        assert error < 0.01 * np.square(exact).mean()

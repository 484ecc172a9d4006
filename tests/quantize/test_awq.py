"""AWQ's searches beside brute force, and what balancing leaves as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.quantized_checkpoints import logits

from penstock.backends.gram import Gram
from penstock.backends.registry import backend
from penstock.quantize.awq import POWERS, clipped_fit, scale_factors
from penstock.quantize.forms.integers import STORAGES, Integers, StoredIntegers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.hidden import HiddenWriter
from penstock.quantize.methods import Awq, Gptq
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.spans import PARTS
from penstock.weights.safetensors import open_folder

Floats = np.ndarray[Any, Any]
GRID = IntegerGrid(4, 32, True, "float32")
FORM = Integers(GRID, STORAGES["compressed-tensors"])
K = 96


def inputs() -> Floats:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(400, K)) * np.exp(1.5 * rng.normal(size=K))).astype(np.float32)


def hessian_of(x: Floats) -> Hessian:
    hessian = Hessian(x.shape[1], Gram())
    hessian.add(x)
    return hessian


def matrices() -> list[Floats]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(n, K)).astype(np.float32) for n in (16, 40)]


def test_factors_are_the_best_power_of_the_sizes_of_inputs() -> None:
    x, found = inputs(), scale_factors(matrices(), GRID, hessian_of(inputs()))
    assert found is not None
    joined = np.concatenate(matrices())
    exact = x.astype(np.float64) @ joined.T
    sizes = np.sqrt(np.square(x).mean(0))
    losses = {}
    for step in range(POWERS + 1):
        factors = sizes ** (step / POWERS)
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        rounded = FORM.round(joined * factors, "m").dequantize()
        losses[step] = float(np.square(x @ (rounded / factors).T - exact).sum())
    best = min(losses, key=losses.__getitem__)
    factors = sizes ** (best / POWERS)
    assert found == pytest.approx(factors / np.sqrt(factors.max() * factors.min()), rel=1e-3)
    assert losses[best] < 0.8 * losses[0]


def test_inputs_of_one_size_need_no_factors() -> None:
    x = np.random.default_rng(2).choice([-1.0, 1.0], (512, K)).astype(np.float32)
    assert scale_factors(matrices(), GRID, hessian_of(x)) is None
    assert scale_factors(matrices(), GRID, hessian_of(np.zeros_like(x))) is None


@pytest.mark.parametrize("symmetric", [True, False])
def test_each_group_has_the_span_with_which_it_loses_least(symmetric: bool) -> None:
    grid = IntegerGrid(3, 32, symmetric, "float32")
    x, matrix = inputs(), matrices()[0]
    grouped = matrix.reshape(len(matrix), 3, 32)
    scales, zeros = clipped_fit(grouped, grid, hessian_of(x).sums("m"))
    for row in range(len(matrix)):
        for group in range(3):
            own = grouped[row, group]
            seen = x[:, group * 32 : (group + 1) * 32].astype(np.float64)
            found: dict[float, tuple[float, float]] = {}
            for part in PARTS:
                scale, zero = grid.fit(own * np.float32(part))
                error = grid.nearest(own, scale, zero) - own
                found[part] = float(np.square(seen @ error).sum()), float(scale)
            least = min(loss for loss, _ in found.values())
            error = grid.nearest(own, scales[row, group], zeros[row, group]) - own
            assert np.square(seen @ error).sum() == pytest.approx(least, rel=1e-3)


class Unrounded(StoredIntegers):
    """The matrix itself, in the place of what it would be rounded to."""

    def dequantize(self) -> Floats:
        return self.exact  # type: ignore[attr-defined, no-any-return]


class BalancedOnly(Awq):
    """Balances, and hands on what the model computes without rounding."""

    def rounded(self, matrix: Floats, hessian: Any, name: str) -> Unrounded:
        made = self.form.round(matrix, name)
        kept = Unrounded(made.matrix, made.storage)
        object.__setattr__(kept, "exact", matrix)
        return kept


class Neither(BalancedOnly):
    """The model as it is."""

    def factors(self, matrices: Any, hessian: Any) -> None:
        return None


SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (8, 60)).tolist()), "w"
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3", "qwen3", "phi"])
def test_a_model_that_is_balanced_computes_what_it_did(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are given what they were given before, though norms and matrices have changed."""
    folder = tiny_checkpoint(family, intermediate_size=96, dtype=dtype)
    source = SourceModel(folder)
    real = HiddenWriter.add
    handed: dict[str, list[Floats]] = {"as it is": [], "balanced": []}
    for name, method in {"as it is": Neither(FORM), "balanced": BalancedOnly(FORM)}.items():

        def add(self: HiddenWriter, values: Any, own: list[Floats] = handed[name]) -> None:
            own.extend(values[buffer.name].copy() for buffer in self._buffers)
            real(self, values)

        monkeypatch.setattr(HiddenWriter, "add", add)
        work = Quantization(source, method, SAMPLES)
        quantize(work, tmp_path / name, backend("reference").bind, 1)
        monkeypatch.undo()
    tolerance = 1e-4 if dtype == "float32" else 0.1
    assert len(handed["balanced"]) >= len(SAMPLES.tokens)
    for ours, other in zip(handed["balanced"], handed["as it is"], strict=True):
        np.testing.assert_allclose(ours, other, rtol=0, atol=tolerance * np.abs(other).max())
    before, after = open_folder(folder), open_folder(tmp_path / "balanced")
    names = [name for name in before if name in after and "norm" in name]
    changed = [n for n in names if (before[n][0].view(n) != after[n][0].view(n)).any()]
    assert changed
    assert {after[name][1].dtype for name in names} == {before[names[0]][1].dtype}


@pytest.mark.parametrize("form", STORAGES)
def test_what_is_written_is_what_was_measured(form: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", intermediate_size=96)
    storage = STORAGES[form]
    source = SourceModel(folder)
    grid = IntegerGrid(4, 32, False, storage.scale_dtype(source.spec.dtype))
    exact = logits(folder)
    errors = {}
    own = Integers(grid, storage)
    for name, method in {"awq": Awq(own), "gptq": Gptq(own)}.items():
        work = Quantization(source, method, SAMPLES)
        done = quantize(work, tmp_path / name, backend("reference").bind, 1)
        assert all(each.error is not None and 0 < each.error < 0.02 for each in done.rounded)
        errors[name] = np.square(logits(tmp_path / name) - exact).mean()
    assert max(errors.values()) < 0.2 * np.square(exact).mean()

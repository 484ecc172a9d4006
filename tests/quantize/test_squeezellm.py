"""SqueezeLLM beside the best codebooks there are, and checkpoints that have such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_checkpoints import edit_config, edit_tensors, logits
from support.quantized_runs import command, into_one_file

from penstock.backends.gram import Gram
from penstock.backends.registry import backend
from penstock.errors import ModelError, WeightError
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import ModelSpec
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.quant.scheme import CODEBOOKS, CodebookBits, CodebookScheme
from penstock.quantize.fisher import SquaredGradients
from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.methods import Gptq
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.squeezellm import means, squeezed
from penstock.quantize.squeezing import SqueezeLlm
from penstock.train.squared_gradients import squared_gradients
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Floats = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)
SHAPE = {"intermediate_size": 96}
SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (8, 60)).tolist()),
    "eight windows",
)


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, columns)) * np.exp(0.5 * rng.normal(size=(rows, columns)))
    return values.astype(np.float32)


def best_loss(values: Floats, weights: Floats, count: int) -> float:
    """The least loss of all codebooks of one row, by dynamic programming over ascending values."""
    order = np.argsort(values)
    x, w = values[order].astype(np.float64), weights[order].astype(np.float64)
    sums = [np.concatenate([[0], np.cumsum(each)]) for each in (w, w * x, w * x * x)]
    k = len(x)
    mass, first, second = (each[None] - each[:, None] for each in sums)
    costs = second - first**2 / np.where(mass > 0, mass, 1)
    costs[np.tril_indices(k + 1, -1)] = np.inf
    best = costs[0]
    for _ in range(count - 1):
        best = (best[:, None] + costs).min(axis=0)
    return float(best[k])


def row_loss(values: Floats, weights: Floats, centers: Floats) -> Floats:
    distances = np.abs(values[:, :, None].astype(np.float64) - centers[:, None])
    found: Floats = (weights * distances.min(axis=2) ** 2).sum(axis=1)
    return found


@pytest.mark.parametrize("columns", [60, 400])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_codebooks_are_the_best_there_are_or_near_to_them(columns: int, count: int) -> None:
    values = heavy_tailed(12, columns)
    weights = np.exp(np.random.default_rng(1).normal(size=values.shape))
    losses = row_loss(values, weights, means(values, weights, count))
    best = np.array([best_loss(v, w, count) for v, w in zip(values, weights, strict=True)])
    assert (losses >= best * (1 - 1e-9)).all()
    if columns == 60:
        assert losses == pytest.approx(best, rel=1e-9)
    assert losses.sum() < 1.03 * best.sum()


@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_few_values_are_exact(seed: int, different: int) -> None:
    """As many values as a codebook has, however uneven, are met where k-means can find them."""
    rng = np.random.default_rng(seed)
    values = rng.choice(rng.normal(size=different), (3, 40)).astype(np.float32)
    weights = rng.random((3, 40)) * (rng.random((3, 40)) < 0.8)
    centers = means(values, weights, 16)
    assert centers.shape == (3, 16)
    assert (np.diff(centers, axis=1) >= 0).all()
    assert np.isfinite(centers).all()
    spread = row_loss(values, weights, values.mean(axis=1, keepdims=True).astype(np.float64))
    assert (row_loss(values, weights, centers) <= spread * 0.3 + 1e-9).all()


def test_the_largest_and_the_most_sensitive_weights_stay() -> None:
    matrix = heavy_tailed(8, 100)
    sensitivity = np.exp(2 * np.random.default_rng(2).normal(size=(1, 100))).astype(np.float32)
    made = squeezed(matrix, sensitivity, 3, 45, F32)
    assert made.outliers.sum() == len(made.values) == 45
    order = np.argsort(-np.abs(matrix).reshape(-1))
    assert made.outliers.reshape(-1)[order[:40]].all()
    left = np.where(made.outliers, 0, np.square(matrix) * sensitivity)
    left.reshape(-1)[order[:40]] = 0
    among = made.outliers.reshape(-1).copy()
    among[order[:40]] = False
    scores = (np.square(matrix) * sensitivity).reshape(-1)
    assert among.sum() == 5
    assert scores[among].min() >= left.max()
    values = made.dequantize()
    assert np.array_equal(values[made.outliers], matrix[made.outliers])
    assert all(
        len(np.unique(row[~out])) <= 8 for row, out in zip(values, made.outliers, strict=True)
    )


@pytest.mark.parametrize("outliers", [0, 1, 7, 800])
def test_any_number_of_weights_may_stay(outliers: int) -> None:
    matrix = np.round(heavy_tailed(8, 100), 1)  # with many of one size
    made = squeezed(matrix, np.ones((1, 1), np.float32), 4, outliers, F32)
    assert made.outliers.sum() == outliers
    if outliers == 800:
        assert np.array_equal(made.dequantize(), matrix)


def test_columns_that_multiply_zeros_have_values_all_the_same() -> None:
    matrix = heavy_tailed(4, 64)
    for sensitivity in (np.zeros((1, 64), np.float32), np.eye(64, dtype=np.float32)[3:4]):
        made = squeezed(matrix, sensitivity, 4, 2, F32)
        assert np.isfinite(made.dequantize()).all()
    assert (
        np.square(
            squeezed(matrix, np.zeros((1, 64), np.float32), 4, 0, F32).dequantize() - matrix
        ).mean()
        < 0.02
    )


@pytest.mark.parametrize("bits", [3, 4])
def test_it_loses_less_than_rounding_to_nearest(bits: CodebookBits) -> None:
    matrix = heavy_tailed(64, 256)
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(500, 256)) * np.exp(rng.normal(size=256))).astype(np.float32)
    hessian = Hessian(256, Gram())
    hessian.add(x)
    made = SqueezeLlm(Codebooks(RowCodebooks(bits, 0.0045), "bfloat16")).rounded(
        matrix, hessian, "m"
    )
    grid = IntegerGrid(bits, 64, True, "float32")
    nearest = Integers(grid, STORAGES["gptq"]).round(matrix, "m").dequantize()
    assert hessian.loss(made.dequantize() - matrix) < 0.5 * hessian.loss(nearest - matrix)


def work(
    folder: Path, bits: CodebookBits = 3, outliers: float = 0.0045, **options: Any
) -> Quantization:
    source = SourceModel(folder)
    form = Codebooks(RowCodebooks(bits, outliers), source.spec.dtype)
    return Quantization(source, SqueezeLlm(form, **options), SAMPLES)


def run(made: Quantization, out: Path) -> Quantized:
    return quantize(made, out, backend("reference").bind, 1)


def kept(folder: Path) -> ModelSpec:
    """The model as a backend reads it that multiplies by codebooks of rows."""
    spec = load_model_spec(folder)
    assert spec.quantized is not None
    return replace(spec, quantized=spec.quantized.limited({CODEBOOKS}, rounded=False))


def values(folder: Path) -> dict[str, Any]:
    spec = load_model_spec(folder)
    plan = lower(spec)
    source = open_weights(folder, spec, plan.weights)
    return {name: np.asarray(source.get(name)) for name in plan.weights}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("outliers", [0.0, 0.0045])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_a_reader_finds_what_the_codes_stand_for(
    family: str, bits: CodebookBits, outliers: float, dtype: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, dtype=dtype, **SHAPE)
    made = work(folder, bits, outliers)
    done = run(made, tmp_path / "out")
    assert f"codebooks of {bits} bits by row read as floats" in str(
        load_model_spec(tmp_path / "out").quantized
    )
    found = values(tmp_path / "out")
    assert 0 < max(each.error or 0 for each in done.rounded) < 0.2
    # What is written first is made of what the model in floats gives, and can be made again.
    name = "layers.0.gate" if family == "llama" else "layers.0.up"
    value = found[name].astype(np.float32)
    assert value.ndim == 2
    counts = [len(np.unique(row)) for row in value]
    assert max(counts) <= (1 << bits) + value.shape[1] * (outliers > 0)
    assert np.median(counts) <= (1 << bits) + 2
    exact, rounded = logits(folder), logits(tmp_path / "out")
    assert 0 < np.square(rounded - exact).mean() < (5 - bits) * np.square(exact).mean()


def test_of_three_bits_less_is_lost_than_by_rounding_to_nearest(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    done = run(work(folder), tmp_path / "out")
    source = SourceModel(folder)
    grid = IntegerGrid(3, 32, True, "float32")

    class Measured(Gptq):
        def rounded(self, matrix: Any, hessian: Any, name: str) -> Any:
            return self.form.round(matrix, name)

    nearest = Quantization(source, Measured(Integers(grid, STORAGES["gptq"])), SAMPLES)
    other = run(nearest, tmp_path / "rtn")
    pairs = zip(done.rounded, other.rounded, strict=True)
    assert np.mean([(a.error or 0) / (b.error or 1) for a, b in pairs]) < 0.7


@needs_native
def test_the_cpu_multiplies_by_the_values(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    run(work(folder), tmp_path / "out")
    ours, reference = logits(tmp_path / "out", "cpu"), logits(tmp_path / "out")
    np.testing.assert_allclose(ours, reference, rtol=0, atol=2e-4)


def test_gradients_are_those_of_finite_differences(tmp_path: Path) -> None:
    """The loss is that of the reference backend."""
    folder = tiny_checkpoint("llama", **SHAPE)
    source = SourceModel(folder)
    name = "model.layers.1.mlp.down_proj.weight"
    tokens = tuple(np.random.default_rng(2).integers(0, 301, 40).tolist())  # those of logits()
    gradients = SquaredGradients(source, Samples((tokens,), "one"), squared_gradients)
    squares = gradients.of(name)
    tensors = load_file(folder / "model.safetensors")

    def loss(changed: Floats) -> float:
        at = tmp_path / "changed"
        if not at.exists():
            import shutil

            shutil.copytree(folder, at)
        save_file({**tensors, name: changed.astype(np.float32)}, at / "model.safetensors")
        rows = logits(at).astype(np.float64)[:-1]
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return float(-rows[np.arange(39), list(tokens[1:])].mean())

    place = np.unravel_index(int(squares.argmax()), squares.shape)
    step = np.zeros_like(tensors[name])
    step[place] = 1e-2
    slope = (loss(tensors[name] + step) - loss(tensors[name] - step)) / 2e-2
    assert squares[place] == pytest.approx(slope**2, rel=0.02)
    made = run(work(folder, gradients=gradients), tmp_path / "out")
    assert 0 < max(each.error or 0 for each in made.rounded) < 0.3


Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    run(work(tiny_checkpoint("llama", **SHAPE)), folder)
    into_one_file(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{Q}.outlier_columns": lambda a: a + 64}, "do not say where 18 outliers .* 64 x 64"),
        ({f"{Q}.outlier_columns": lambda a: a * 0}, "do not say where"),
        ({f"{Q}.outlier_rows": lambda a: a[::-1].copy()}, "do not say where"),
        ({f"{Q}.codebook": lambda a: a[:, :4]}, r"has shape \[64, 4\], but config.json asks"),
        ({f"{Q}.codes": lambda a: a.astype(np.int64)}, "is stored as I64"),
    ],
)
def test_tensors_that_cannot_be_right(changes: Any, message: str, packed: Path) -> None:
    edit_tensors(packed, changes)
    with pytest.raises(WeightError, match=message):
        values(packed)


@pytest.mark.parametrize("name", ["codebook", "outlier_values"])
def test_kept_codes_name_finite_values(name: str, packed: Path) -> None:
    def spoilt(array: Any) -> Any:
        array = array.copy()
        array.reshape(-1)[0] = np.inf
        return array

    edit_tensors(packed, {f"{Q}.{name}": spoilt})
    spec = kept(packed)
    plan = lower(spec)
    with pytest.raises(WeightError, match=f"{name}' has values that are not finite"):
        open_weights(packed, spec, plan.weights).get("layers.1.q")


def test_tensors_that_have_several_matrices_are_read_as_floats(tmp_path: Path) -> None:
    """How many outliers some of their rows have, only the weights tell."""
    folder = tmp_path / "out"
    run(work(tiny_checkpoint("phi3", **SHAPE)), folder)
    products = [op for op in lower(kept(folder)).ops if isinstance(op, Linear)]
    schemes = {part.weight.split(".")[-1]: op.scheme for op in products for part in op.parts}
    assert schemes["q"] is schemes["up"] is None
    assert schemes["down"] == CodebookScheme(3, 0.0045)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 5}, r"bits .5. is not supported; supported are 3 and 4"),
        ({"outliers": 0.5}, r"outliers .0\.5. must be from 0 to 0\.1"),
        ({"rank": 2}, "rank .2. is not a field"),
    ],
)
def test_configurations_that_are_refused(fields: Any, message: str, packed: Path) -> None:
    edit_config(packed, **fields)
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


@needs_native
@pytest.mark.parametrize("sensitivity", ["inputs", "gradients"])
def test_the_command(sensitivity: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, text, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = [folder, "--method", "squeezellm", "--bits", 3, "--outliers", 0.01, "--out", out]
    words += ["--calibration", text, "--samples", 2, "--sample-length", 64]
    code, said, err = command(capsys, *words, "--sensitivity", sensitivity)
    assert code == 0, err
    assert "squared error of outputs" in said
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert section["outliers"] == 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "squeezellm"], "--method squeezellm needs a text: --calibration FILE"),
        (["--method", "squeezellm", "--bits", "8"], "--bits: squeezellm has 3 or 4, not 8"),
        (["--method", "squeezellm", "--outliers", "0.2"], "--outliers: must be from 0 to 0.1"),
        (["--method", "squeezellm", "--group-size", "64"], "--group-size: is of --method rtn"),
        (["--outliers", "0.01"], "--outliers: is of --method squeezellm alone"),
    ],
)
def test_words_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    code, _, err = command(capsys, folder, "--out", tmp_path / "out", *words)
    assert code != 0
    assert message in err

"""2:4 sparsity: which weights stay, what they become, and the checkpoints that have them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file
from support.checkpoints import tiny_checkpoint
from support.fitted_spans import fitted
from support.needs import Need, needs_native
from support.quantized_checkpoints import edit_config, edit_tensors, logits, native_logits
from support.quantized_runs import command, into_one_file

from penstock.backends.cpu import native
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.backends.registry import backend
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.plan.lower import lower
from penstock.plan.ops import Linear, Op
from penstock.plan.plan import Plan
from penstock.quant import GroupScheme, GroupTensor
from penstock.quantize.forms.integers import STORAGES, Integers, Storage
from penstock.quantize.forms.sparse import PrunedStorage, Sparse24Storage, SparseFloats, compressed
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Method, RoundToNearest
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.sparsity import CodeColumns, FloatColumns, by_magnitude, sparsegpt
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder

Floats = np.ndarray[Any, Any]
N, K = 16, 192
SHAPE = {"intermediate_size": 96}
SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (40, 60)).tolist()),
    "forty windows",
)


def inputs(tokens: int = 600, columns: int = K) -> Floats:
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(tokens, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    sizes = np.exp(rng.normal(size=columns))
    return ((mixed + rng.normal(size=(tokens, columns))) * sizes).astype(np.float32)


def weights(rows: int = N, columns: int = K) -> Floats:
    return np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)


def loss(made: Floats, matrix: Floats, x: Floats) -> float:
    return float(((x.astype(np.float64) @ (made - matrix).T.astype(np.float64)) ** 2).sum())


def zeros_of_fours(matrix: Floats) -> Floats:
    return (matrix.reshape(len(matrix), -1, 4) == 0).sum(axis=2)


@given(arrays.arrays(np.float32, (3, 8), elements=st.floats(-4, 4, width=16)))
def test_the_largest_two_of_four_stay(matrix: Floats) -> None:
    kept = by_magnitude(matrix)
    for row, mask in zip(matrix.reshape(-1, 4), kept.reshape(-1, 4), strict=True):
        pairs = itertools.combinations(range(4), 2)
        best = max(np.abs(row[list(pair)]).astype(np.float64).sum() for pair in pairs)
        assert mask.sum() == 2
        assert np.abs(row[mask]).astype(np.float64).sum() == best


def reference(matrix: Floats, x: Floats, damping: float, grid: IntegerGrid | None) -> Floats:
    """Optimal brain surgery in float64, each inverse computed anew."""
    hessian = x.astype(np.float64).T @ x.astype(np.float64)
    k = matrix.shape[1]
    hessian[np.diag_indices(k)] += damping * np.diagonal(hessian).mean()
    left = matrix.astype(np.float64)
    result = np.zeros_like(left)
    size = k if grid is None else k // grid.groups(k)
    lost = np.array([1 / np.linalg.inv(hessian[i:, i:])[0, 0] for i in range(k)])

    def kept(first: int, end: int) -> Floats:
        costs = (left[:, first:end] ** 2 * lost[first:end]).reshape(len(left), -1, 4)
        order = np.argsort(np.argsort(-costs, axis=2, kind="stable"), axis=2)
        return (order < 2).reshape(len(left), -1)

    for i in range(k):
        if grid is not None and i % size == 0:
            own = np.where(kept(i, i + size), left[:, i : i + size], 0).astype(np.float32)
            scale, zero = fitted(own, lost[i : i + size], grid)
        if i % 4 == 0:
            stays = kept(i, i + 4)
        column = np.where(stays[:, i % 4], left[:, i], 0)
        if grid is not None:
            code = np.clip(np.round(column / scale) + zero, 0, grid.highest)
            column = (code - zero) * scale
        result[:, i] = column
        inverse = np.linalg.inv(hessian[i:, i:])
        left[:, i:] -= np.outer((left[:, i] - column) / inverse[0, 0], inverse[0])
    return result


@pytest.mark.parametrize(
    "grid",
    [
        None,
        IntegerGrid(4, 32, True, "float32"),
        IntegerGrid(8, None, True, "float32"),
        IntegerGrid(4, 96, False, "float32"),
    ],
    ids=str,
)
def test_sparsegpt_is_that_of_the_reference(grid: IntegerGrid | None) -> None:
    matrix, x = weights(), inputs()
    columns = FloatColumns((N, K), "float32") if grid is None else CodeColumns((N, K), grid)
    sparsegpt(matrix, x.T @ x, columns, 0.01, "m")
    whole = columns.matrix
    made = whole if isinstance(whole, np.ndarray) else whole.dequantize()
    assert (zeros_of_fours(made) >= 2).all()
    expected = loss(reference(matrix, x, 0.01, grid), matrix, x)
    assert loss(made, matrix, x) == pytest.approx(expected, rel=0.01)
    kept = np.where(by_magnitude(matrix), matrix, np.float32(0))
    if grid is not None:
        kept = Integers(grid, STORAGES["gptq"]).round(kept, "m").dequantize()
    assert loss(made, matrix, x) < 0.6 * loss(kept, matrix, x)


def test_one_four_alone_is_near_to_the_best_of_all_masks() -> None:
    """The best of the six masks, each with the best values there are for it, by least squares."""
    matrix, x = weights(200, 4), inputs(300, 4)
    columns = FloatColumns(matrix.shape, "float32")
    sparsegpt(matrix, x.T @ x, columns, 1e-6, "m")
    losses = []
    for pair in itertools.combinations(range(4), 2):
        own = x[:, pair].astype(np.float64)
        solved = np.linalg.lstsq(own, x.astype(np.float64) @ matrix.T.astype(np.float64))[1]
        losses.append(solved)
    best = np.min(losses, axis=0)
    error = (x.astype(np.float64) @ (columns.matrix - matrix).T.astype(np.float64)) ** 2
    assert best.sum() * (1 - 1e-6) < error.sum() < 1.6 * best.sum()


def test_columns_that_multiply_zeros_go_first() -> None:
    matrix, x = weights(), inputs()
    x[:, [4, 6]] = 0
    columns = FloatColumns((N, K), "float32")
    sparsegpt(matrix, x.T @ x, columns, 0.01, "m")
    assert not columns.matrix[:, [4, 6]].any()
    assert columns.matrix[:, [5, 7]].all()


def test_values_are_those_that_the_type_has() -> None:
    columns = FloatColumns((N, K), "bfloat16")
    sparsegpt(weights(), inputs().T @ inputs(), columns, 0.01, "m")
    assert not (columns.matrix.view(np.uint32) & 0xFFFF).any()


def test_what_is_compressed_is_as_it_was_defined() -> None:
    """Bits from the lowest of a byte on; zeros where a four has too few weights."""
    matrix = np.array([[0, 5, 0, -3, 1, 0, 0, 0, 0, 0, 0, 0]], np.float32)
    made = compressed(matrix, matrix)
    assert made["compressed"].tolist() == [[5, -3, 1, 0, 0, 0]]
    assert made["bitmask"].tolist() == [[0b00111010, 0b0011]]
    assert made["shape"].tolist() == [[1], [12]]


def work(folder: Path, make: Callable[[SourceModel], Method]) -> Quantization:
    source = SourceModel(folder)
    method = make(source)
    return Quantization(source, method, SAMPLES if method.calibrated else None)


def floats(kind: Any, compress: bool) -> Callable[[SourceModel], Method]:
    return lambda source: kind(SparseFloats(source.spec.dtype, compress))


def integers(
    kind: Any, bits: int, group: int | None, storage: Storage, symmetric: bool = True
) -> Callable[[SourceModel], Method]:
    return lambda source: kind(
        Integers(IntegerGrid(bits, group, symmetric, source.spec.dtype), storage)
    )


def run(made: Quantization, out: Path) -> None:
    quantize(made, out, backend("reference").bind, 1)


def values(folder: Path) -> dict[str, Any]:
    spec = load_model_spec(folder)
    plan = lower(spec)
    source = open_weights(folder, spec, plan.weights)
    read = {name: source.get(name) for name in plan.weights}
    return {
        name: value.dequantize() if isinstance(value, GroupTensor) else np.asarray(value)
        for name, value in read.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Magnitude, SparseGpt])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_floats_are_the_same_with_and_without_zeros(
    family: str, kind: Any, dtype: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, dtype=dtype, **SHAPE)
    run(work(folder, floats(kind, False)), tmp_path / "dense")
    run(work(folder, floats(kind, True)), tmp_path / "compressed")
    assert "quantization_config" not in json.loads((tmp_path / "dense/config.json").read_text())
    dense, small = values(tmp_path / "dense"), values(tmp_path / "compressed")
    sparse = 0
    for name, value in dense.items():
        assert value.dtype == small[name].dtype
        assert np.array_equal(value, small[name]), name
        if name.startswith("layers.") and value.ndim == 2:
            assert (zeros_of_fours(value.astype(np.float32)) >= 2).all()
            sparse += 1
    assert sparse >= 8
    before = sum(each.stop - each.start for _, each in open_folder(tmp_path / "dense").values())
    after = sum(each.stop - each.start for _, each in open_folder(tmp_path / "compressed").values())
    assert after < before
    if kind is Magnitude and family == "llama":
        name = "model.layers.1.mlp.up_proj.weight"
        original = SourceModel(folder).values(name)
        expected = np.where(by_magnitude(original), original, 0)
        assert np.array_equal(dense["layers.1.up"].astype(np.float32), expected)


@pytest.mark.parametrize("kind", [Magnitude, SparseGpt])
@pytest.mark.parametrize(
    ("bits", "group", "form"), [(4, 32, "compressed-tensors"), (4, 32, "gptq"), (8, None, "w8")]
)
def test_integers_that_stay_are_rounded(
    kind: Any, bits: int, group: int | None, form: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    storage = STORAGES.get(form, Sparse24Storage())
    run(work(folder, integers(kind, bits, group, storage)), tmp_path / "out")
    found = values(tmp_path / "out")
    for name in ("layers.0.q", "layers.1.down"):
        assert (zeros_of_fours(found[name]) >= 2).all()
        assert (zeros_of_fours(found[name]) == 2).mean() > 0.5
    exact, rounded = logits(folder), logits(tmp_path / "out")
    assert 0 < np.square(rounded - exact).mean() < 4 * np.square(exact).mean()
    if form == "w8":
        tensors = load_file(tmp_path / "out" / "model-00001-of-00003.safetensors")
        name = "model.layers.0.self_attn.q_proj"
        assert tensors[f"{name}.compressed"].dtype == np.int8
        assert f"{name}.weight" not in tensors


@needs_native
@pytest.mark.parametrize("bits", [None, 8])
def test_the_cpu_multiplies_what_was_compressed(bits: int | None, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    own = (
        floats(Magnitude, True) if bits is None else integers(Magnitude, 8, None, Sparse24Storage())
    )
    run(work(folder, own), tmp_path / "out")
    ours, reference_ = logits(tmp_path / "out", "cpu"), logits(tmp_path / "out")
    np.testing.assert_allclose(ours, reference_, rtol=0, atol=2e-4)


def dense_plan(plan: Plan) -> Plan:
    """The same with all panels dense."""

    def dense(op: Op) -> Op:
        if isinstance(op, Linear) and isinstance(op.scheme, GroupScheme):
            return replace(op, scheme=replace(op.scheme, sparse=False))
        return op

    return replace(plan, ops=tuple(map(dense, plan.ops)))


@needs_native
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("bits", "group", "storage"),
    [(8, None, Sparse24Storage()), (4, 32, PrunedStorage()), (2, 32, PrunedStorage())],
)
def test_a_checkpoint_that_says_so_is_held_without_zeros(
    bits: int, group: int | None, storage: Storage, symmetric: bool, tmp_path: Path
) -> None:
    if bits == 8 and not symmetric:
        return
    folder = tiny_checkpoint("llama", **SHAPE)
    run(work(folder, integers(Magnitude, bits, group, storage, symmetric)), tmp_path / "out")
    options = {"model": str(tmp_path / "out"), "dtype": "float32"}
    plan = plan_engine(EngineConfig(**options)).plan  # type: ignore[arg-type]
    kinds = {op.scheme for op in plan.ops if isinstance(op, Linear) and op.scheme is not None}
    (scheme,) = kinds
    assert isinstance(scheme, GroupScheme)
    holds = native.load().sparse_panels
    assert scheme.sparse is holds
    assert ("2:4 sparse" in str(scheme)) is holds
    got = native_logits(tmp_path / "out", plan, native.load().isa, "float32")
    same = native_logits(tmp_path / "out", dense_plan(plan), native.load().isa, "float32")
    np.testing.assert_array_equal(got.view(np.uint32), same.view(np.uint32))
    assert (weight_bytes(plan) < weight_bytes(dense_plan(plan))) is holds
    # Floats are multiplied by dense panels, and another backend has no others.
    for more in ({"quantize_activations": False}, {"backend": "reference"}):
        plan = plan_engine(EngineConfig(**options, **more)).plan  # type: ignore[arg-type]
        kinds = {op.scheme for op in plan.ops if isinstance(op, Linear) and op.scheme is not None}
        assert not any(isinstance(each, GroupScheme) and each.sparse for each in kinds)


@needs_native
def test_what_says_so_wrongly_is_refused(tmp_path: Path) -> None:
    if not native.load().sparse_panels:
        pytest.skip(Need.INSTRUCTIONS.reason("AVX-512 VBMI2"))
    folder = tiny_checkpoint("llama", **SHAPE)
    run(work(folder, integers(RoundToNearest, 4, 32, PrunedStorage())), tmp_path / "out")
    config = EngineConfig(model=str(tmp_path / "out"), dtype="float32")
    plan = plan_engine(config).plan
    with pytest.raises(WeightError, match="more than two weights in four columns, but config"):
        native_logits(tmp_path / "out", plan, native.load().isa, "float32")


@needs_native
def test_random_weights_are_sparse_where_a_checkpoints_would_be(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    run(work(folder, integers(Magnitude, 4, 32, PrunedStorage())), tmp_path / "out")
    plan = plan_engine(EngineConfig(model=str(tmp_path / "out"), load_format="dummy")).plan
    found = np.asarray(DummyWeights(plan.weights, 0, "float32").get("layers.0.q"))
    assert (zeros_of_fours(found) >= 2).all() is np.bool_(native.load().sparse_panels)


def small(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    run(work(tiny_checkpoint("llama", **SHAPE), floats(Magnitude, True)), folder)
    into_one_file(folder)
    return folder


Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{Q}.bitmask": lambda a: a * 0 + 1}, "does not keep 2 of each 4 columns"),
        ({f"{Q}.bitmask": None}, "lacks|has no"),
        ({f"{Q}.compressed": lambda a: a[:, 1:]}, "has shape .* config.json asks for"),
        ({f"{Q}.shape": lambda a: a + 4}, r"says that the matrix is \[68, 68\]"),
    ],
)
def test_tensors_that_cannot_be_right(changes: Any, message: str, tmp_path: Path) -> None:
    folder = small(tmp_path)
    edit_tensors(folder, changes)
    with pytest.raises(WeightError, match=message):
        values(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sparsity_structure": "unstructured"}, r"sparsity_structure .* must be 2:4"),
        ({"targets": ["Conv1d"]}, "targets .* has 'Conv1d'"),
        ({"rank": 3}, "rank .3. is not a field"),
        ({"format": "sparse-bitmask"}, "config_groups .* must have a group"),
    ],
)
def test_configurations_that_are_refused(fields: Any, message: str, tmp_path: Path) -> None:
    folder = small(tmp_path)
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, sparsity_config=section["sparsity_config"] | fields)
    with pytest.raises(ModelError, match=message):
        load_model_spec(folder)


def test_what_a_format_does_not_have_is_refused() -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    with pytest.raises(ConfigError, match="integers of 8 bits by rows alone; take --bits 8"):
        work(folder, integers(Magnitude, 4, 32, Sparse24Storage()))
    folder = tiny_checkpoint("llama", intermediate_size=98)
    with pytest.raises(ConfigError, match=r"down_proj has 98 columns, .* groups of 4; 2:4"):
        work(folder, floats(Magnitude, False))


@needs_native
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, text = tiny_checkpoint("llama", **SHAPE), tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = [folder, "--sparsity", "2:4"]
    code, _, err = command(capsys, *words, "--out", tmp_path / "a")
    assert code == 0, err
    more = ["--calibration", text, "--samples", 2, "--sample-length", 64, "--bits", 4]
    more += ["--method", "sparsegpt", "--group-size", 32, "--out", tmp_path / "b"]
    code, said, err = command(capsys, *words, *more)
    assert code == 0, err
    assert "squared error of outputs" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--method", "rtn", "--sparsity", "2:4"],
            "--sparsity: is of --method magnitude, sparsegpt",
        ),
        (["--sparsity", "1:4"], "invalid choice: '1:4'"),
        (["--sparsity", "2:4", "--group-size", "32"], "--group-size: is of integers; give --bits"),
        (["--sparsity", "2:4", "--format", "gptq"], "--format: gptq has no floats; give --bits"),
        (
            ["--sparsity", "2:4", "--bits", "auto", "--budget", "4"],
            "auto is of --method rtn, gptq, awq alone, not of magnitude",
        ),
        (["--format", "sparse-24-bitmask"], "--format: sparse-24-bitmask is of --method magnitude"),
        (["--method", "sparsegpt"], "--method sparsegpt needs a text: --calibration FILE"),
        (["--sparsity", "2:4", "--bits", "4", "--format", "sparse-24-bitmask"], "8 bits by rows"),
    ],
)
def test_words_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    code, _, err = command(capsys, folder, "--out", tmp_path / "out", *words)
    assert code != 0
    assert message in err
    assert not (tmp_path / "out").exists()

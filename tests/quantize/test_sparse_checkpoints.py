"""2:4 sparse checkpoints: what their weights are, that engines read them, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.checkpoints import tiny_checkpoint
from support.fours import zeros_of_fours
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
from penstock.quantize.forms.sparse import PrunedStorage, Sparse24Storage, SparseFloats
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Method, RoundToNearest
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.sparsity import by_magnitude
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder

Floats = np.ndarray[Any, Any]
SHAPE = {"intermediate_size": 96}
SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (40, 60)).tolist()),
    "forty windows",
)


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

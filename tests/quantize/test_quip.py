"""QuIP#: LDLQ beside its definition, losses beside those of others, whole checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_checkpoints import LIMITS, TOKENS, logits
from support.tiny_plans import Chunk, step_of

from penstock.backends.reference.executor import ReferenceExecutor as bind
from penstock.backends.registry import backend
from penstock.cli import main as cli
from penstock.errors import ModelError, WeightError
from penstock.interface.executor import run
from penstock.interface.source_walks import packed
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.lattice_matrix import LatticeMatrix
from penstock.quant.scheme import LATTICE, LatticeBits, LatticeScheme
from penstock.quant.turn import Turn
from penstock.quantize.comparison import bits_per_weight
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.gptq import gptq
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.ldlq import ldlq
from penstock.quantize.methods import Quip, RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Floats = np.ndarray[Any, Any]
N, K = 96, 160
SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (8, 40)).tolist()),
    "eight windows",
)


def inputs(tokens: int = 900, columns: int = K) -> Floats:
    """Rows whose columns are of different sizes and depend on each other, as a model's are."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(tokens, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    sizes = np.exp(rng.normal(size=columns))
    return ((mixed + rng.normal(size=(tokens, columns))) * sizes).astype(np.float32)


def weights(rows: int = N, columns: int = K) -> Floats:
    """Some are much larger than the others."""
    rng = np.random.default_rng(1)
    made = rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=(rows, 1)))
    made[rng.random(made.shape) < 0.01] *= 8
    return made.astype(np.float32)


def loss(made: Floats, matrix: Floats, x: Floats) -> float:
    exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
    outputs = x.astype(np.float64) @ (made.astype(np.float64) - matrix).T
    return float(np.square(outputs).sum() / np.square(exact).sum())


def to_integers(x: Floats, block: int) -> Floats:
    return np.rint(x)


def test_ldlq_is_its_definition_by_blocks() -> None:
    """The last blocks first; each is moved by the errors of those behind it, as the block of the
    factor between them says, which is found here by eliminating blocks one at a time."""
    matrix, x = weights(7), inputs()
    hessian = (x.T @ x).astype(np.float64)
    made = ldlq(matrix, hessian, to_integers, 0.01, "m").astype(np.float64)
    damped = hessian + 0.01 * np.diagonal(hessian).mean() * np.eye(K)
    lower, left = np.eye(K), damped.copy()
    for at in range(0, K, 8):
        own, later = slice(at, at + 8), slice(at + 8, K)
        lower[later, own] = left[later, own] @ np.linalg.inv(left[own, own])
        left[later, later] -= lower[later, own] @ left[own, later]
    expected = np.zeros(matrix.shape)
    for at in reversed(range(0, K, 8)):
        own, later = slice(at, at + 8), slice(at + 8, K)
        moved = (matrix[:, later] - expected[:, later]) @ lower[later, own]
        expected[:, own] = np.rint(matrix[:, own] + moved)
    assert (made != expected).mean() < 0.01  # where float32 decides between two halves
    assert loss(made, matrix, x) == pytest.approx(loss(expected, matrix, x), rel=0.02)
    assert loss(made, matrix, x) < 0.5 * loss(np.rint(matrix), matrix, x)


def test_a_hessian_that_is_none_is_refused_with_the_matrix() -> None:
    hessian = np.eye(K, dtype=np.float32)
    hessian[0, 1] = hessian[1, 0] = 1e6
    with pytest.raises(WeightError, match=r"the Hessian of layer\.q has no inverse"):
        ldlq(weights(), hessian, to_integers, 0.01, "layer.q")


def losses(matrix: Floats, x: Floats, bits: LatticeBits) -> tuple[float, float, float]:
    """Those of QuIP#, GPTQ and rounding to nearest, of about as many bits each: the last two have
    one scale a row."""
    hessian = x.T @ x
    made = Lattice(bits, 0).rounded(matrix, hessian, 0.01, "m").dequantize()
    grid = IntegerGrid(bits, None, True, "float32")
    later = gptq(matrix, hessian, grid, "static", 0.01, "m").dequantize()
    nearest = Integers(grid, STORAGES["gptq"]).round(matrix, "m").dequantize()
    return loss(made, matrix, x), loss(later, matrix, x), loss(nearest, matrix, x)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_outputs_lose_less_than_with_other_methods(bits: LatticeBits) -> None:
    ours, later, nearest = losses(weights(), inputs(), bits)
    assert ours < later < nearest
    if bits == 2:
        assert ours < 0.5 * later


def test_more_bits_lose_less() -> None:
    found = [losses(weights(), inputs(), bits)[0] for bits in (2, 3, 4)]
    assert found[1] < 0.5 * found[0]
    assert found[2] < 0.5 * found[1]


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("shape", [(96, 160), (40, 172), (7, 12), (1, 8)])
def test_what_is_stored_is_what_was_chosen(shape: tuple[int, int], bits: LatticeBits) -> None:
    """Also where a row is no whole number of points."""
    matrix = weights(*shape)
    made = Lattice(bits, 9).round(matrix, "m")
    arrays = made.arrays()
    assert arrays["weight_codes"].shape == (shape[0], -(-shape[1] // 8), bits)
    assert arrays["weight_codes"].dtype == np.uint8
    again = LatticeMatrix(
        LatticeScheme(bits, 9), arrays["weight_codes"], arrays["weight_scale"][0], shape[1]
    )
    assert np.array_equal(again.dequantize(), made.dequantize())
    error = np.square(made.dequantize() - matrix).sum() / np.square(matrix).sum()
    if shape == (96, 160):  # turned as a whole
        assert error < {2: 0.1, 3: 0.035, 4: 0.01}[bits]


def test_a_matrix_is_what_its_definition_says() -> None:
    """Both turns as matrices, in float64."""
    made = Lattice(3, 4).round(weights(), "m").matrix
    columns = Turn(K, 4, "input").forward(np.eye(K)).astype(np.float64)
    rows = Turn(N, 4, "output").forward(np.eye(N)).astype(np.float64)
    expected = rows @ (made.points() * float(made.scale)) @ columns.T
    assert np.allclose(made.dequantize(), expected, atol=1e-4)


def test_zeros_stay_zeros() -> None:
    made = Lattice(2, 0).round(np.zeros((16, 24), np.float32), "m")
    assert not made.dequantize().any()


def test_values_too_large_are_refused_with_the_matrix() -> None:
    with pytest.raises(WeightError, match=r"layer\.q has values too large"):
        Lattice(2, 0).round(np.full((16, 24), 3e38, np.float32), "layer.q")


def values(folder: Path) -> dict[str, Floats]:
    spec = load_model_spec(folder)
    source = open_weights(folder, spec, lower(spec).weights)
    return {name: np.asarray(source.get(name)) for name in source.names()}


def written(at: Path, bits: LatticeBits, family: str = "llama", **fields: Any) -> Path:
    folder = tiny_checkpoint(family, **{"intermediate_size": 96, **fields})
    work = Quantization(SourceModel(folder), Quip(Lattice(bits, 5)), SAMPLES)
    quantize(work, at, backend("reference").bind, 1)
    return at


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3"])
def test_a_reader_finds_what_was_chosen(family: str, tmp_path: Path) -> None:
    """Also where matrices are stored joined, and read as parts."""
    out = written(tmp_path / "out", 4, family)
    spec = load_model_spec(out)
    assert "E8P of 4 bits read as floats" in str(spec.quantized)
    weights = lower(spec).weights
    source = open_weights(out, spec, weights)
    exact = values(tiny_checkpoint(family, intermediate_size=96))
    files = {}
    for path in out.glob("*.safetensors"):
        files |= load_file(path)
    seen = 0
    for name, weight in weights.items():
        for matrix in packed(weight.source):
            assert f"{matrix.name}.weight" not in files
            codes, scale = (files[f"{matrix.name}.weight_{end}"] for end in ("codes", "scale"))
            decoded = LatticeMatrix(
                LatticeScheme(4, 5), codes, scale[0], matrix.columns
            ).dequantize()
            read = np.asarray(source.get(name))
            places = [i for i in range(len(decoded)) if np.array_equal(decoded[i], read[0])]
            assert len(places) == 1
            assert np.array_equal(decoded[places[0] : places[0] + len(read)], read)
            assert np.square(read - exact[name]).sum() < 0.1 * np.square(exact[name]).sum()
            seen += 1
    assert seen >= 14


def on_lattice(folder: Path) -> ModelSpec:
    """The model as a backend reads it that multiplies by points of the lattice."""
    spec = load_model_spec(folder)
    assert spec.quantized is not None
    return replace(spec, quantized=spec.quantized.limited({LATTICE}, rounded=False))


@pytest.mark.parametrize(("family", "bits"), [("llama", 2), ("phi3", 3), ("qwen2", 4)])
def test_products_with_points_are_those_with_their_floats(
    family: str, bits: LatticeBits, tmp_path: Path
) -> None:
    """Also of matrices that are stored joined, and of those with a bias."""
    out = written(tmp_path / "out", bits, family)
    exact = logits(out)
    plain = lower(on_lattice(out), "float32")
    products = [op for op in plain.ops if isinstance(op, Linear) and op.out != "logits"]
    assert {(op.scheme, op.weight_only) for op in products} == {(LatticeScheme(bits, 5), True)}
    found = []
    for plan in (plain, fuse(plain)):
        executor = bind(plan, open_weights(out, plan.spec, plan.weights, "float32"), LIMITS)
        step = step_of([Chunk(TOKENS, 0, 40, [3, 1], rows=range(40))])
        found.append(run(executor, step).logits.copy())
        short = step_of([Chunk(TOKENS[:7], 0, 7, [3, 1], rows=range(7))])
        assert np.array_equal(run(executor, short).logits, found[-1][:7])
    assert np.array_equal(*found)
    assert np.allclose(found[0], exact, atol=2e-3)
    assert weight_bytes(plain) < weight_bytes(lower(load_model_spec(out), "float32"))


def test_modules_may_be_left_in_floats_one_by_one(tmp_path: Path) -> None:
    out = written(tmp_path / "out", 2)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"].append("gate_proj")
    (out / "config.json").write_text(json.dumps(config))
    plan = fuse(lower(on_lattice(out), "float32"))
    products = [op for op in plan.ops if isinstance(op, Linear) and op.out != "logits"]
    in_floats = {part.weight for op in products if op.scheme is None for part in op.parts}
    assert in_floats
    assert all("gate" in name for name in in_floats)


def test_the_reference_backend_multiplies_points(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = written(tmp_path / "out", 2)
    capsys.readouterr()
    for backend_name in ("reference", "cpu"):
        assert cli.main(["explain", str(out), "--backend", backend_name]) == 0
        shown = capsys.readouterr().out
        assert "E8P of 2 bits" in shown
        assert ("read as floats" in shown) == (backend_name == "cpu")


def test_two_bits_are_an_eighth_of_sixteen(tmp_path: Path) -> None:
    out = written(tmp_path / "out", 2, dtype="bfloat16")
    assert bits_per_weight(out) / 16 < 0.14


def test_the_same_bytes_come_of_the_same_seed_alone(tmp_path: Path) -> None:
    first, second = written(tmp_path / "first", 2), written(tmp_path / "second", 2)
    names = sorted(path.name for path in first.glob("*.safetensors"))
    assert names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    others = [Lattice(2, seed).round(weights(), "m").matrix.codes for seed in (0, 1)]
    assert (others[0] != others[1]).mean() > 0.5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bits", 5, r"bits \(5\) must be 2, 3 or 4"),
        ("codebook", "D4", r"codebook \('D4'\) must be E8P"),
        ("seed", -1, r"seed \(-1\) must be from 0 to 2147483647"),
        ("rank", 8, "rank"),
    ],
)
def test_configurations_that_are_not_known_are_refused(
    field: str, value: object, message: str, tmp_path: Path
) -> None:
    out = written(tmp_path / "out", 2)
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"][field] = value
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_model_spec(out)


def test_scales_that_are_none_are_refused(tmp_path: Path) -> None:
    out = written(tmp_path / "out", 2)
    damaged = tmp_path / "damaged"
    shutil.copytree(out, damaged)
    path = damaged / "model-00001-of-00003.safetensors"
    tensors = load_file(path)
    name = next(each for each in tensors if each.endswith("weight_scale"))
    tensors[name] = np.array([np.nan], np.float32)
    save_file(tensors, path)
    with pytest.raises(WeightError, match="which no scale is"):
        logits(damaged)


def test_the_command_refuses_what_quip_does_not_have(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tiny_checkpoint("llama", intermediate_size=96)
    given = ["quantize", str(model), "--out", str(tmp_path / "out"), "--method", "quip"]
    for words, message in (
        (["--bits", "8"], "argument --bits: must be 2, 3 or 4 for quip, not 8"),
        (["--group-size", "64"], "argument --group-size: is of --method rtn and gptq and awq"),
        (["--seed", str(2**31)], "argument --seed: must be at most 2147483647 for quip"),
        ([], "--method quip needs a text: --calibration FILE"),
    ):
        assert cli.main([*given, *words]) != 0
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@needs_native
def test_the_command_writes_what_is_then_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tiny_checkpoint("qwen3", dtype="bfloat16", intermediate_size=96)
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    out = tmp_path / "out"
    words = ["quantize", str(model), "--out", str(out), "--method", "quip", "--bits", "3"]
    words += ["--calibration", str(text), "--samples", "4", "--sample-length", "64", "--seed", "2"]
    assert cli.main(words) == 0, capsys.readouterr().err
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (section["quant_method"], section["bits"], section["seed"]) == ("quip", 3, 2)
    assert cli.main(["explain", str(out)]) == 0
    assert "E8P of 3 bits" in capsys.readouterr().out


def test_rounding_to_nearest_needs_no_text() -> None:
    hessian = Hessian(K)
    hessian.add(inputs())
    plain = RoundToNearest(Lattice(2, 0)).rounded(weights(), None, "m").dequantize()
    better = Quip(Lattice(2, 0)).rounded(weights(), hessian, "m").dequantize()
    assert hessian.loss(better - weights()) < 0.8 * hessian.loss(plain - weights())

"""Checkpoints of lattice points: what is written, what reads it, what an interrupted run leaves."""

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
from penstock.interface.executor import Executor, Limits, run
from penstock.interface.source_walks import packed
from penstock.interface.weights import WeightSource
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.lattice_matrix import LatticeMatrix
from penstock.quant.scheme import LATTICE, LatticeBits, LatticeScheme
from penstock.quantize.comparison import bits_per_weight
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.methods import Quip
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

Floats = np.ndarray[Any, Any]
SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (8, 40)).tolist()),
    "eight windows",
)


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


@pytest.mark.parametrize(("family", "bits"), [("llama", 2), ("qwen2", 3), ("llama", 4)])
def test_products_with_points_are_those_with_their_floats(
    family: str, bits: LatticeBits, tmp_path: Path
) -> None:
    """Also of those with a bias."""
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


def test_what_is_turned_with_others_becomes_floats(tmp_path: Path) -> None:
    """Where a tensor has the rows of several matrices, and where rows are no whole 32 columns."""
    joined = lower(on_lattice(written(tmp_path / "joined", 2, "phi3")), "float32")
    odd = lower(on_lattice(written(tmp_path / "odd", 2, intermediate_size=88)), "float32")
    for plan, points in ((joined, {"o", "down"}), (odd, {"q", "k", "v", "o", "gate", "up"})):
        products = [op for op in plan.ops if isinstance(op, Linear) and op.out != "logits"]
        names = {op.parts[0].weight for op in products if op.scheme is not None}
        assert {name.rpartition(".")[2] for name in names} == points


@needs_native
def test_what_backends_multiply(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = written(tmp_path / "out", 2)
    for words, as_floats in (
        (["--backend", "reference"], False),
        (["--backend", "cpu"], False),
        (["--backend", "cpu", "--quantization", "int8"], True),
        (["--backend", "cpu", "--tensor-parallel", "2"], True),
    ):
        capsys.readouterr()
        assert cli.main(["explain", str(out), *words]) == 0
        shown = capsys.readouterr().out
        assert "E8P of 2 bits" in shown
        assert ("read as floats" in shown) == as_floats


def test_random_weights_are_points_as_a_checkpoint_would_have_them(tmp_path: Path) -> None:
    plan = lower(on_lattice(written(tmp_path / "out", 3)), "float32")
    drawn, again = (DummyWeights(plan.weights, 7, "float32") for _ in range(2))
    for name in ("layers.0.q", "layers.1.down"):
        matrix = drawn.get(name)
        assert isinstance(matrix, LatticeMatrix)
        n, k = plan.weights[name].shape
        assert matrix.shape == (n, k)
        assert 0.7 < np.square(matrix.dequantize()).mean() * k < 1.4
        assert np.array_equal(matrix.codes, again.get(name).codes)
    assert not np.array_equal(drawn.get("layers.0.q").codes, drawn.get("layers.1.q").codes)


def test_two_bits_are_an_eighth_of_sixteen(tmp_path: Path) -> None:
    out = written(tmp_path / "out", 2, dtype="bfloat16")
    assert bits_per_weight(out) / 16 < 0.14


def test_the_same_bytes_come_of_the_same_seed_alone(tmp_path: Path) -> None:
    first, second = written(tmp_path / "first", 2), written(tmp_path / "second", 2)
    names = sorted(path.name for path in first.glob("*.safetensors"))
    assert names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    matrix = np.random.default_rng(1).normal(size=(96, 160)).astype(np.float32)
    others = [Lattice(2, seed).round(matrix, "m").matrix.codes for seed in (0, 1)]
    assert (others[0] != others[1]).mean() > 0.5


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    work = Quantization(
        SourceModel(tiny_checkpoint("llama", num_hidden_layers=3, intermediate_size=96)),
        Quip(Lattice(3, 5)),
        SAMPLES,
    )
    bind_one = backend("reference").bind
    quantize(work, tmp_path / "whole", bind_one, 1)
    out, bound = tmp_path / "out", 0

    def bind_twice(plan: Plan, weights: WeightSource, limits: Limits) -> Executor:
        nonlocal bound
        bound += 1
        if bound > 2:
            raise KeyboardInterrupt
        return bind_one(plan, weights, limits)

    with pytest.raises(KeyboardInterrupt):
        quantize(work, out, bind_twice, 1)
    assert not out.exists()
    assert quantize(work, out, bind_one, 1).resumed == 1
    for path in (tmp_path / "whole").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


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
        (["--group-size", "64"], "argument --group-size: is of --method rtn, gptq, awq"),
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

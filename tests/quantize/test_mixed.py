"""Checkpoints whose matrices have different numbers of bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.interrupted_runs import Interrupted, interrupted
from support.needs import Need, needs_native
from support.quantized_checkpoints import TOKENS, logits
from support.quantized_runs import command

from penstock.backends.registry import backend
from penstock.cli import main as cli
from penstock.engine.piece_run import Bind
from penstock.errors import ConfigError
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import WeightSource
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant import GroupTensor
from penstock.quantize.budget import Budget
from penstock.quantize.comparison import bits_per_weight
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Awq, Gptq, Method, RoundToNearest
from penstock.quantize.mixed import BudgetedQuantization
from penstock.quantize.record import RECORD, SENSITIVITY
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.samples import Samples
from penstock.quantize.sensitivity import FLOATS, Sensitivity, measured_bits
from penstock.quantize.source import SourceModel
from penstock.quantize.sweeping import divergence
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

SHAPE = {"intermediate_size": 96}
SAMPLES = Samples((tuple(TOKENS.tolist()),), "one window")
MORE = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (6, 50)).tolist()),
    "six windows",
)
ALL = (2, 3, 4, 8, FLOATS)


def work(
    folder: Path,
    budget: str,
    *,
    method: Callable[[Integers], Method] = RoundToNearest,
    allowed: Sequence[int] = ALL,
    samples: Samples | None = SAMPLES,
    group: int | None = 32,
    symmetric: bool = True,
) -> BudgetedQuantization:
    source = SourceModel(folder)
    storage = STORAGES["compressed-tensors"]
    own = storage.scale_dtype(source.spec.dtype)
    methods = {
        bits: method(Integers(IntegerGrid(bits, group, symmetric, own), storage))
        for bits in allowed
        if bits != FLOATS
    }
    parsed = Budget.parse(budget)
    return BudgetedQuantization(source, methods, parsed, samples, FLOATS in allowed)


def run(made: BudgetedQuantization, out: Path, bind: Bind | None = None) -> Quantized:
    return quantize(made, out, bind or backend("reference").bind, 1)


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RECORD).read_text())[SENSITIVITY]
    return found


def log_softmax(values: Any) -> Any:
    wide = values.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2", "falcon", "cohere"])
def test_what_is_measured_is_the_divergence_of_a_model_with_one_unit_rounded(
    family: str, tmp_path: Path
) -> None:
    """As the whole model has it that is read from a checkpoint of these values."""
    shape = SHAPE if family != "falcon" else {}
    folder = tiny_checkpoint(family, **shape)
    made = work(folder, "6", allowed=(3, 8))
    run(made, tmp_path / "out")
    base = log_softmax(logits(folder))
    for unit in figures(tmp_path / "out")["units"]:
        values = shutil.copytree(folder, tmp_path / "alone") / "model.safetensors"
        tensors = dict(load_file(values))
        for module in unit["modules"]:
            name = made.source.stored_name(f"{module}.weight")
            tensors[name] = made.form(3).round(tensors[name], name).dequantize()
        save_file(tensors, values)
        alone = log_softmax(logits(tmp_path / "alone"))
        expected = (np.exp(base) * (base - alone)).sum(axis=1).mean()
        assert unit["measured"] == [3]
        assert unit["nats_a_token"]["3"] == pytest.approx(expected, rel=2e-3, abs=1e-9)
        ratio = unit["squared_errors"]["8"] / unit["squared_errors"]["3"]
        assert unit["nats_a_token"]["8"] == pytest.approx(expected * ratio, rel=2e-3, abs=1e-9)
        assert 0 < ratio < 0.01
        shutil.rmtree(tmp_path / "alone")


def test_divergences_are_those_of_float64() -> None:
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(5, 400)) * 4).astype(np.float32)
    shares = np.exp(log_softmax(base)).astype(np.float32)
    for size in (1e-3, 0.1, 3.0):
        other = (base + rng.normal(size=base.shape) * size).astype(np.float32)
        expected = (np.exp(log_softmax(base)) * (log_softmax(base) - log_softmax(other))).sum(1)
        found = [divergence(*rows) for rows in zip(base, shares, other, strict=True)]
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-8)
    assert divergence(base[0], shares[0], base[0] + np.float32(1)) < 1e-6
    assert divergence(base[0], shares[0], base[1] * np.float32(300)) > 70


@pytest.mark.slow
@pytest.mark.parametrize("method", [RoundToNearest, Gptq, Awq])
@pytest.mark.parametrize(("symmetric", "group"), [(True, 32), (False, None)])
def test_a_reader_finds_each_matrix_with_its_bits(
    method: Any, symmetric: bool, group: int | None, tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", num_hidden_layers=3, dtype="bfloat16", **SHAPE)
    made = work(folder, "6.5", method=method, symmetric=symmetric, group=group, samples=MORE)
    done = run(made, tmp_path / "out")
    assert done.chosen is not None
    spec = load_model_spec(tmp_path / "out")
    plan = lower(spec)
    source = open_weights(tmp_path / "out", spec, plan.weights)
    kept = {name: source.get(name) for name in plan.weights}
    assert len(set(done.chosen.bits)) > 1
    pairs = zip(made.units, done.chosen.bits, strict=True)
    modules = {target.module: own for unit, own in pairs for target in unit.targets}
    few = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
    for module, own in modules.items():
        layer, last = module.split(".")[2], module.rpartition(".")[2]
        value = kept[f"layers.{layer}.{few.get(last, last.removesuffix('_proj'))}"]
        if own == FLOATS:
            assert isinstance(value, np.ndarray)
            continue
        assert isinstance(value, GroupTensor)
        points = value.points()
        span = 1 << own
        assert points.min() >= -span
        assert points.max() < span
        assert len(np.unique(value.codes)) <= span
        assert len(np.unique(value.codes)) > span // 3
    # q, k and v, and gate and up, are joined by engines.
    for layer in range(3):
        joined = {modules[f"model.layers.{layer}.self_attn.{each}_proj"] for each in "qkv"}
        assert len(joined) == 1
    assert np.isfinite(logits(tmp_path / "out")).all()
    assert done.chosen.bits_a_weight <= 6.5


@pytest.mark.parametrize("budget", ["7", "14"])
def test_transformers_reads_the_same(budget: str, tmp_path: Path) -> None:
    """Each matrix in its group, and those in floats."""
    pytest.importorskip("compressed_tensors", reason=Need.PACKAGE.reason("compressed-tensors"))
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_checkpoint("llama", num_hidden_layers=3, **SHAPE)
    done = run(work(folder, budget, method=Gptq, allowed=(4, 8, FLOATS)), tmp_path / "out")
    assert done.chosen is not None
    assert len(set(done.chosen.bits)) > 1
    assert (FLOATS in done.chosen.bits) == (budget == "14")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.from_numpy(TOKENS[None].astype(np.int64))).logits[0].numpy()
    np.testing.assert_allclose(logits(tmp_path / "out"), theirs, rtol=0, atol=2e-3)


@pytest.mark.slow
def test_a_budget_of_bytes_is_of_the_whole_checkpoint(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    whole = run(work(folder, "31.9"), tmp_path / "most").source_bytes
    for part in (0.55, 0.75):
        budget = int(whole * part / 1000)
        done = run(work(folder, f"{budget}kB"), tmp_path / str(part))
        assert 0.85 * budget * 1000 < done.num_bytes <= budget * 1000


@pytest.mark.slow
def test_more_bytes_lose_less_and_bits_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3", **SHAPE)
    lost = []
    for budget in ("4", "5", "7"):
        done = run(work(folder, budget, allowed=(2, 3, 4, 8)), tmp_path / budget)
        own = figures(tmp_path / budget)
        lost.append(own["nats_a_token"])
        assert own["bits_a_weight"] == pytest.approx(bits_per_weight(tmp_path / budget), abs=1e-6)
        assert done.chosen is not None
        assert own["bits_a_weight"] == done.chosen.bits_a_weight <= float(budget)
    assert lost[0] > lost[1] > lost[2] > 0


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 3, 9, 17, 18, 19, 21])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(after: int, tmp_path: Path) -> None:
    """A layer of the sweep binds nine times, the head once, and a layer that is rounded twice."""
    folder = tiny_checkpoint("llama", **SHAPE)

    def mine() -> BudgetedQuantization:
        return work(folder, "6", method=Gptq, allowed=(3, 4, 8), samples=MORE)

    run(mine(), tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        run(mine(), out, interrupted(after))
    again = 0

    def counting(plan: Plan, weights: WeightSource, limits: Limits) -> Executor:
        nonlocal again
        again += 1
        return backend("reference").bind(plan, weights, limits)

    run(mine(), out, counting)
    done = after // 9 * 9 if after < 18 else 18 if after == 18 else after - (after - 19) % 2
    assert again == 22 - done
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def test_losses_that_are_not_measured_are_by_squared_errors() -> None:
    own = Sensitivity(("m",), {3: 8.0, 4: 2.0, 8: 0.01}, {3: 0.7, 4: 0.2})
    assert [own.loss(bits) for bits in (3, 4, FLOATS)] == [0.7, 0.2, 0.0]
    assert own.loss(8) == pytest.approx(0.001)
    assert Sensitivity(("m",), {4: 0.0, 8: 0.0}, {4: 0.0}).loss(8) == 0
    assert measured_bits((2, 4, 8, FLOATS)) == (2, 4)
    assert measured_bits((8, FLOATS)) == (8,)


@pytest.mark.parametrize(
    ("budget", "allowed", "message"),
    [
        ("2.9", ALL, r"--budget 2\.9 is less .* 3\.\d+ bits a weight; give more, or a larger"),
        ("10kB", ALL, r"--budget 10kB is less .*: [\d.]+ MB; give more"),
        ("32", ALL, r"--budget 32 holds the model as it is, which takes 32\.000 bits"),
        ("9GB", ALL, r"--budget 9GB holds the model as it is"),
    ],
)
def test_budgets_that_decide_nothing_are_refused(
    budget: str, allowed: Sequence[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        work(tiny_checkpoint("llama", **SHAPE), budget, allowed=allowed)


def test_what_cannot_be_measured_is_refused() -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    with pytest.raises(ConfigError, match="--bits auto needs a text: --calibration FILE"):
        work(folder, "4", samples=None)


@needs_native
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    folder = tiny_checkpoint("llama", max_position_embeddings=1024, **SHAPE)
    words = [folder, "--out", out, "--calibration", text, "--samples", 2, "--sample-length", 64]
    words += ["--group-size", 32, "--bits", "auto", "--budget", 5]
    code, said, err = command(capsys, *words, "--allowed-bits", 3, 4, 8)
    assert code == 0, err
    assert "bits a weight" in said
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    bits = {each["weights"]["num_bits"] for each in section["config_groups"].values()}
    assert bits <= {3, 4, 8}
    record = json.loads((out / RECORD).read_text())
    assert (record["bits"], record["budget"], record["allowed_bits"]) == ("auto", "5", [3, 4, 8])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bits", "auto"], "--bits: auto needs a --budget, such as 3.5"),
        (["--bits", "5"], "--bits: must be 2, 3, 4, 8 or auto, not '5'"),
        (["--budget", "3.5"], "--budget: is of --bits auto alone"),
        (["--allowed-bits", "4"], "--allowed-bits: is of --bits auto alone"),
        (["--bits", "auto", "--budget", "x"], "--budget: not a budget: 'x'"),
        (["--bits", "auto", "--budget", "4", "--format", "gptq"], "--format compressed-tensors"),
        (["--bits", "auto", "--budget", "4", "--allowed-bits", "16"], "must have 2, 3, 4 or 8"),
        (["--bits", "auto", "--budget", "4"], "--bits auto needs a text: --calibration FILE"),
        (["--method", "fp8", "--budget", "4"], "--budget: is of --method rtn, gptq, awq"),
    ],
)
def test_words_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    code, _, err = command(capsys, folder, "--out", tmp_path / "out", *words)
    assert code == cli.EXIT_USAGE or "--calibration" in message
    assert message in err
    assert not (tmp_path / "out").exists()

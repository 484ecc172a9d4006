"""Mixtures of experts: what is measured of the rows that a router chooses, and what of that is
rounded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_checkpoints import logits
from support.quantized_runs import SAMPLES, command

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.backends.registry import backend
from penstock.engine.piece_run import PieceRun
from penstock.errors import ModelError
from penstock.interface.executor import Executor, Limits
from penstock.interface.step import StepInput, StepResult
from penstock.interface.weights import WeightSource
from penstock.models.squeezellm import RowCodebooks
from penstock.plan.ops import Buffer, ExpertLinear, Rows
from penstock.plan.plan import Plan
from penstock.quantize.budget import Budget
from penstock.quantize.forms import w8a8
from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.forms.form import Coded
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.forms.small_floats import Nvfp4
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.inputs import Input, in_passes
from penstock.quantize.methods import Awq, Gptq, Method, Quip, RoundToNearest, SmoothQuant
from penstock.quantize.mixed import BudgetedQuantization
from penstock.quantize.pruning import SparseGpt
from penstock.quantize.quantization import Quantization
from penstock.quantize.record import RECORD, SENSITIVITY
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.squeezing import SqueezeLlm

SHAPE = {"moe_intermediate_size": 32, "intermediate_size": 96}
SOME = Samples(SAMPLES.tokens[:6], "six windows")


def integers(form: str = "compressed-tensors", bits: int = 4) -> Integers:
    storage = STORAGES[form]
    return Integers(IntegerGrid(bits, 32, True, storage.scale_dtype("float32")), storage)


def run(
    folder: Path,
    method: Method,
    out: Path,
    samples: Samples = SOME,
    name: str = "reference",
    **options: Any,
) -> Quantized:
    work = Quantization(SourceModel(folder), method, samples)
    return quantize(work, out, backend(name).bind, 1, **options)  # type: ignore[arg-type]


def tensors(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@dataclass(frozen=True)
class Recorded(RoundToNearest):
    """Rounds to nearest, and keeps what it has been told of inputs."""

    calibrated = True
    sums: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def of_joined(self, matrices: Any) -> Recorded:
        return self

    def rounded(self, matrix: Any, hessian: Hessian | None, name: str) -> Coded:
        if hessian is not None:
            self.sums[name] = hessian.sums(name).copy()
            self.tokens[name] = hessian.tokens
        return super().rounded(matrix, None, name)


class Watched(ReferenceExecutor):
    """Adds up the products of the pairs of columns that each expert's rows have, row by row."""

    sums: dict[tuple[str, int], Any]

    def run(self, step: StepInput) -> StepResult:
        result = super().run(step)
        for op in self._plan.ops:
            if not isinstance(op, ExpertLinear):
                continue
            x, ids = self._buffers[op.x], self._buffers[op.ids]
            for token, experts in enumerate(ids):
                for place, expert in enumerate(experts):
                    each = x[token] if len(x) == len(ids) else x[token * len(experts) + place]
                    wide = each.astype(np.float64)
                    for part in op.parts:
                        key = part.weight, int(expert)
                        self.sums[key] = self.sums.get(key, 0) + np.outer(wide, wide)
        return result


def watched(sums: dict[tuple[str, int], Any]) -> Callable[..., Executor]:
    """A backend's bind. What a layer is given before its matrices are rounded is added up, and not
    what it is given after."""
    seen: set[str] = set()

    def bind(plan: Plan, weights: WeightSource, limits: Limits) -> Executor:
        made = Watched(plan, weights, limits)
        made.sums = {} if seen & set(plan.weights) else sums
        seen.update(plan.weights)
        return made

    return bind


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "qwen2_moe", "olmoe"])
def test_hessians_are_of_the_rows_that_experts_are_given(family: str, tmp_path: Path) -> None:
    shape = {**SHAPE, "shared_expert_intermediate_size": 64} if family == "qwen2_moe" else SHAPE
    if family in ("mixtral", "olmoe"):
        shape = {"intermediate_size": 32}
    method, sums = Recorded(integers()), dict[tuple[str, int], Any]()
    work = Quantization(SourceModel(tiny_checkpoint(family, **shape)), method, SOME)
    quantize(work, tmp_path / "out", watched(sums), 1)
    # What only makes outputs of a layer is not run before its matrices are rounded; the first layer
    # is given the same then.
    whole = dict[tuple[str, int], Any]()
    layers = work.layers
    weights = work.source.weights(layers.weights, layers.rounded, layers.dtype)
    length = len(SOME.tokens[0])
    with PieceRun(watched(whole), layers.layers[0].piece, weights, length, 1) as piece_run:
        for number, given in weights.looked_up(layers.lookups, SOME.tokens):
            piece_run(SOME.tokens[number], given)
    downs = {key: own for key, own in whole.items() if key[0] == "layers.0.experts.down"}
    assert downs
    sums = downs | sums
    names = {"w1": "gate", "w3": "up", "w2": "down"}
    seen = 0
    for module, own in method.sums.items():
        parts = module.split(".")
        if "experts" not in parts:
            continue
        matrix = parts[-2].removesuffix("_proj")
        key = f"layers.{parts[2]}.experts.{names.get(matrix, matrix)}", int(parts[-3])
        if key not in sums:
            assert key[0] == "layers.1.experts.down"
            continue
        np.testing.assert_allclose(own, sums[key], rtol=2e-4, atol=1e-3)
        seen += 1
    assert seen > 20
    # Every token has as many experts as it has.
    tokens = [method.tokens[n] for n in method.tokens if "layers.0." in n and "experts" in n]
    top_k = load_top_k(tmp_path / "out")
    assert sum(tokens) == 3 * top_k * sum(map(len, SOME.tokens))


def load_top_k(folder: Path) -> int:
    found: int = json.loads((folder / "config.json").read_text())["num_experts_per_tok"]
    return found


METHODS: dict[str, Method] = {
    "gptq": Gptq(integers("gptq")),
    "group": Gptq(integers(), "group"),
    "awq": Awq(integers()),
    "smoothquant": SmoothQuant(Integers(IntegerGrid(8, None, True, "float32"), w8a8)),
    "quip": Quip(Lattice(2, 0)),
    "sparsegpt": SparseGpt(integers()),
    "squeezellm": SqueezeLlm(Codebooks(RowCodebooks(4, 0.01), "float32")),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_read_a_text(name: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", **SHAPE)
    done = run(folder, METHODS[name], tmp_path / "out")
    assert done.matrices == len(done.rounded) == 2 * (4 + 6 * 3)
    errors = [each.error for each in done.rounded if each.error is not None]
    assert len(errors) == done.matrices
    assert 0 < np.mean(errors) < (0.15 if name in ("quip", "sparsegpt") else 0.02)
    # Few bits of a small model change who is chosen, but what is read is what was measured.
    exact, rounded = logits(folder), logits(tmp_path / "out")
    assert 0 < np.square(rounded - exact).mean() < 2 * np.square(exact).mean()


def test_gptq_of_experts_loses_less(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", **SHAPE)
    nearest = run(folder, Recorded(integers()), tmp_path / "rtn", SAMPLES)
    done = run(folder, Gptq(integers()), tmp_path / "gptq", SAMPLES)
    pairs = [
        (ours.error or 0, other.error or 1)
        for ours, other in zip(done.rounded, nearest.rounded, strict=True)
        if "experts" in ours.module
    ]
    assert np.mean([ours / other for ours, other in pairs]) < 0.9


def with_router(tmp_path: Path, values: Callable[[Any], Any]) -> Path:
    folder = shutil.copytree(tiny_checkpoint("qwen3_moe", **SHAPE), tmp_path / "model")
    found = dict(load_file(folder / "model.safetensors"))
    for name in found:
        if name.endswith("mlp.gate.weight"):
            found[name] = values(found[name])
    save_file(found, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_experts_that_no_token_reaches_are_rounded_to_nearest(name: str, tmp_path: Path) -> None:
    """A router of zeros takes the first two of all."""
    folder, method = with_router(tmp_path, np.zeros_like), METHODS[name]
    done = run(folder, method, tmp_path / "out")
    few = {each.module for each in done.rounded if each.few}
    assert few == {
        f"model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj"
        for layer in range(2)
        for expert in range(2, 6)
        for matrix in ("gate", "up", "down")
    }
    before, after = tensors(folder), tensors(tmp_path / "out")
    for module in few:
        made = method.rounded(before[f"{module}.weight"], None, module)
        for end, array in made.arrays().items():
            np.testing.assert_array_equal(after[f"{module}.{end}"], array)
        if name in ("gptq", "group"):
            nearest = method.form.round(before[f"{module}.weight"], module)  # type: ignore[attr-defined]
            np.testing.assert_array_equal(made.dequantize(), nearest.dequantize())


def test_layers_whose_hessians_have_no_room_together_read_the_text_again(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", **SHAPE)
    for experts_bytes in (1, 5 * 64 * 64, 1 << 30):
        run(folder, Gptq(integers()), tmp_path / str(experts_bytes), experts_bytes=experts_bytes)
    whole = tensors(tmp_path / str(1 << 30))
    for part in (1, 5 * 64 * 64):
        own = tensors(tmp_path / str(part))
        assert own.keys() == whole.keys()
        assert all(np.array_equal(own[name], whole[name]) for name in whole)


def test_passes_have_all_inputs_and_room_for_them() -> None:
    rows = Buffer("x", Rows.TOKENS, 8, "float32")
    ids = Buffer("ids", Rows.TOKENS, 2, "int32")
    experts = [Input(rows, ids, i) for i in range(7)]
    dense = Input(rows)
    for room, sizes in ((1, [2, 1, 1, 1, 1, 1, 1]), (512, [3, 2, 2, 1]), (10**6, [8])):
        found = list(in_passes([*experts, dense, *experts], room))
        assert [len(each) for each in found] == sizes
        assert found[0][0] == dense
        assert [each for some in found for each in some][1:] == experts


def together(folder: Path, transposed: bool) -> None:
    """Put the matrices of experts into stacks, as transformers has them in memory."""
    found = dict(load_file(folder / "model.safetensors"))
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts"
        matrices = {
            name: np.stack([found.pop(f"{at}.{i}.{name}_proj.weight") for i in range(6)])
            for name in ("gate", "up", "down")
        }
        stacks = {
            f"{at}.gate_up_proj": np.concatenate([matrices["gate"], matrices["up"]], axis=1),
            f"{at}.down_proj": matrices["down"],
        }
        for name, stack in stacks.items():
            found[name] = np.ascontiguousarray(stack.swapaxes(1, 2)) if transposed else stack
    save_file(found, folder / "model.safetensors")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("method", [RoundToNearest(integers()), Gptq(integers())])
def test_stacks_become_tensors_of_each_expert(
    method: Method, transposed: bool, tmp_path: Path
) -> None:
    # Of a shape that tells which way the stacks are kept.
    one_by_one = tiny_checkpoint("qwen3_moe", moe_intermediate_size=96, intermediate_size=96)
    folder = shutil.copytree(one_by_one, tmp_path / "model")
    together(folder, transposed)
    run(folder, method, tmp_path / "out")
    run(one_by_one, method, tmp_path / "expected")
    own, expected = tensors(tmp_path / "out"), tensors(tmp_path / "expected")
    assert own.keys() == expected.keys()
    assert all(np.array_equal(own[name], expected[name]) for name in expected)


def test_who_does_not_read_experts_is_said() -> None:
    source = SourceModel(tiny_checkpoint("qwen3_moe", **SHAPE))
    (note,) = Quantization(source, RoundToNearest(Nvfp4())).notes
    assert "factors of experts' NVFP4 matrices" in note
    assert not Quantization(source, RoundToNearest(integers())).notes
    dense = SourceModel(tiny_checkpoint("qwen3", intermediate_size=96))
    assert not Quantization(dense, RoundToNearest(Nvfp4())).notes


def test_stacks_that_a_reader_looks_for_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"experts are in one tensor, .* no format of this kind; take another"
    ):
        Quantization(SourceModel(tiny_checkpoint("granitemoe")), RoundToNearest(integers()))


def budgeted(folder: Path, budget: str) -> BudgetedQuantization:
    methods: dict[int, Method] = {bits: Gptq(integers(bits=bits)) for bits in (2, 4, 8)}
    return BudgetedQuantization(SourceModel(folder), methods, Budget.parse(budget), SOME)


@pytest.mark.slow
def test_all_experts_of_a_layer_have_the_same_bits(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", **SHAPE)
    for name, options in (("a", {}), ("b", {"experts_bytes": 1})):
        made = budgeted(folder, "5.2")
        quantize(made, tmp_path / name, backend("reference").bind, 1, **options)
    figures = json.loads((tmp_path / "a" / RECORD).read_text())[SENSITIVITY]
    units = [unit for unit in figures["units"] if "experts" in unit["modules"][0]]
    assert [len(unit["modules"]) for unit in units] == [18, 18]
    other = json.loads((tmp_path / "b" / RECORD).read_text())[SENSITIVITY]
    for own, again in zip(figures["units"], other["units"], strict=True):
        assert own["nats_a_token"] == again["nats_a_token"]
        for bits, error in own["squared_errors"].items():
            assert again["squared_errors"][bits] == pytest.approx(error, rel=1e-5)
    assert np.isfinite(logits(tmp_path / "a")).all()


@needs_native
def test_the_command_tells_of_experts_that_few_tokens_reach(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = with_router(tmp_path, np.zeros_like)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = [folder, "--out", out, "--calibration", text, "--samples", 4, "--sample-length", 64]
    code, said, err = command(capsys, *words, "--method", "gptq", "--group-size", 32)
    assert code == 0, err
    assert "24 matrices multiply too little of the text to calibrate them, and are rounded" in said


@needs_native
def test_both_backends_find_the_same(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", **SHAPE)
    hessians = []
    for name in ("reference", "cpu"):
        method = Recorded(integers())
        run(folder, method, tmp_path / name, name=name)
        hessians.append(method.sums)
    for name, own in hessians[0].items():
        np.testing.assert_allclose(own, hessians[1][name], rtol=1e-3, atol=1e-2)

"""Whole checkpoints: what is written, and what reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_checkpoints import logits
from support.quantized_runs import SAMPLES, SHAPE, run, work

from penstock.backends.registry import backend
from penstock.engine.piece_run import PieceRun
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.quant import GroupTensor
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.small_floats import Mxfp4
from penstock.quantize.gptq import Order
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Gptq, RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder


def open_plan_weights(folder: Path) -> Any:
    spec = load_model_spec(folder)
    return open_weights(folder, spec, lower(spec).weights)


def values(folder: Path) -> dict[str, Any]:
    """Every weight of a checkpoint, as floats."""
    source = open_plan_weights(folder)
    read = {name: source.get(name) for name in source.names()}
    return {
        name: value.dequantize() if isinstance(value, GroupTensor) else np.asarray(value)
        for name, value in read.items()
    }


SIZES = [(4, 32), (4, None), (8, 32), (8, None), (3, 32), (2, None)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("form", "bits", "group"),
    [(form, *size) for form in STORAGES for size in SIZES if form != "awq" or size[0] == 4],
)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3", "olmo2"])
def test_a_reader_finds_the_nearest_points(
    family: str, bits: int, group: int | None, symmetric: bool, form: str, tmp_path: Path
) -> None:
    """Whichever way the model's weights share tensors."""
    folder = tiny_checkpoint(family, dtype="bfloat16", **SHAPE)
    made = work(folder, RoundToNearest, bits=bits, group=group, symmetric=symmetric, form=form)
    done = run(made, tmp_path / "out")
    before, after = values(folder), values(tmp_path / "out")
    rounded = 0
    for name, value in after.items():
        expected = before[name].astype(np.float32)
        if name.startswith("layers.") and expected.ndim == 2 and not name.endswith("norm"):
            expected = made.method.rounded(expected, None, name).dequantize()
            rounded += 1
        assert np.array_equal(value.astype(np.float32), expected), name
    assert rounded >= done.matrices > 0
    assert done.num_bytes < done.source_bytes
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@dataclass(frozen=True)
class MeasuredRounding(RoundToNearest):
    """Rounds to nearest, with the errors of that measured."""

    calibrated = True


@pytest.mark.slow
@pytest.mark.parametrize("order", ["static", "group", "none"])
@pytest.mark.parametrize("form", ["compressed-tensors", "gptq"])
def test_gptq_of_a_whole_model_loses_less(form: str, order: Order, tmp_path: Path) -> None:
    """The inputs of this model are random and hardly alike, so columns can make up for little."""
    folder = tiny_checkpoint("llama", **SHAPE)
    nearest = run(work(folder, MeasuredRounding, form=form), tmp_path / "rtn")
    done = run(work(folder, partial(Gptq, order=order), form=form), tmp_path / "gptq")
    assert len(done.rounded) == done.matrices == 14
    pairs = zip(done.rounded, nearest.rounded, strict=True)
    ratios = [(ours.error or 0) / (other.error or 1) for ours, other in pairs]
    assert 0.3 < np.mean(ratios) < 0.9
    # What is read is what was measured: the file stands for the values that the errors are of.
    exact, rounded = logits(folder), logits(tmp_path / "gptq")
    assert 0 < np.square(rounded - exact).mean() < 0.2 * np.square(exact).mean()


def test_experts_are_rounded_one_by_one(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", moe_intermediate_size=32)
    made = work(folder, RoundToNearest)
    run(made, tmp_path / "out")
    before, after = open_plan_weights(folder), open_plan_weights(tmp_path / "out")
    for name in ("layers.0.experts.gate", "layers.1.experts.down"):
        for index in range(4):
            expected = np.asarray(before.member(name, index)).astype(np.float32)
            expected = made.method.rounded(expected, None, name).dequantize()
            assert np.array_equal(after.member(name, index).dequantize(), expected)
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.gate" in section["ignore"]


@pytest.mark.parametrize("method", [RoundToNearest, Gptq])
def test_weights_that_are_not_finite_are_refused_by_name(method: Any, tmp_path: Path) -> None:
    """Also where what they make is what is not finite first."""
    folder = changed(tmp_path, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(WeightError, match=r"model\.layers\.1\.mlp\.up_proj\.weight has values"):
        run(work(folder, method), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def changed(tmp_path: Path, spoiled: Callable[[dict[str, Any]], Any]) -> Path:
    """A checkpoint in which a value of one tensor is NaN."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama", **SHAPE), folder)
    tensors = dict(load_file(folder / "model.safetensors"))
    spoiled(tensors)[3, 4] = np.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_groups_that_divide_no_rows_are_refused_with_those_that_do() -> None:
    folder = tiny_checkpoint("llama", intermediate_size=96)
    with pytest.raises(
        ConfigError, match=r"down_proj has 96 .* groups of 64; take --group-size 32"
    ):
        work(folder, RoundToNearest, group=64)
    with pytest.raises(ConfigError, match="of 128; take --group-size 32 or --group-size row"):
        work(folder, RoundToNearest, group=128)
    source = SourceModel(tiny_checkpoint("llama", intermediate_size=72))
    with pytest.raises(ConfigError, match=r"72 columns, .* groups of 32; take another --method"):
        Quantization(source, RoundToNearest(Mxfp4()))


@pytest.mark.parametrize(("form", "bits"), [("awq", 4), ("gptq", 3)])
def test_rows_that_a_format_does_not_pack_are_refused(form: str, bits: int) -> None:
    folder = tiny_checkpoint("llama", hidden_size=64, intermediate_size=100)
    with pytest.raises(ConfigError, match=r"_proj has .*; take another --format, --bits"):
        work(folder, RoundToNearest, bits=bits, group=None, form=form)


@pytest.mark.slow
def test_groups_of_any_order_have_an_index_even_where_there_is_one(tmp_path: Path) -> None:
    """The configuration says so for all matrices; and rows that are one group have no order."""
    folder = tiny_checkpoint("llama", hidden_size=128, intermediate_size=128)
    by_index = partial(Gptq, order="group")
    run(work(folder, by_index, group=128), tmp_path / "one")
    assert "model.layers.0.mlp.up_proj.weight_g_idx" in open_folder(tmp_path / "one")
    assert values(tmp_path / "one")
    run(work(folder, by_index, group=None), tmp_path / "rows")
    section = json.loads((tmp_path / "rows" / "config.json").read_text())["quantization_config"]
    assert section["config_groups"]["group_0"]["weights"]["actorder"] is None
    assert values(tmp_path / "rows")


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    run(work(folder, RoundToNearest), tmp_path / "out")
    with pytest.raises(ModelError, match=r"quantized already .*quantize the original"):
        work(tmp_path / "out", RoundToNearest)


def test_a_format_says_what_it_does_not_have() -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    with pytest.raises(ConfigError, match="--format awq has 4 bits alone, not 8"):
        work(folder, RoundToNearest, bits=8, form="awq")
    with pytest.raises(ConfigError, match="groups of neighbours alone; take --act-order static"):
        work(folder, partial(Gptq, order="group"), form="awq")


def test_a_method_that_reads_needs_a_text() -> None:
    source = SourceModel(tiny_checkpoint("llama", **SHAPE))
    grid = IntegerGrid(4, 32, True, "float32")
    with pytest.raises(ConfigError, match="--method gptq needs a text: --calibration FILE"):
        Quantization(source, Gptq(Integers(grid, STORAGES["gptq"])))


@needs_native
@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3", "gpt_neox"])
def test_what_matrices_multiply_is_known_without_what_is_behind_it(
    family: str, tmp_path: Path
) -> None:
    """A down matrix does not run before it is rounded, and all inputs have the bits that they have
    where it does."""
    made = work(tiny_checkpoint(family, **SHAPE), Gptq)
    layers = made.layers
    weights = made.source.weights(layers.weights, layers.rounded, layers.dtype)
    bind, layer = backend("reference").bind, layers.layers[0]
    assert layer.measured is not None
    assert layer.measured.made == ()
    assert len(layer.measured.plan.weights) < len(layer.piece.plan.weights)
    _, given = next(weights.looked_up(layers.lookups, SAMPLES.tokens))
    tokens = SAMPLES.tokens[0]
    found = []
    for piece in (layer.piece, layer.measured):
        with PieceRun(bind, piece, weights, len(tokens), 1) as piece_run:
            returned = piece_run(tokens, given)
            inputs = {each.input for each in layer.targets if each.input is not None}
            found.append({each: each.of(returned).copy() for each in inputs})
    whole, some = found
    assert whole.keys() == some.keys()
    assert all(np.array_equal(whole[each], some[each]) for each in whole)


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3", "olmo2", "gpt_neox"])
def test_layers_run_in_the_type_of_their_weights(family: str, tmp_path: Path) -> None:
    """Products of bfloat16 read bfloat16, whose units are several times as fast; between layers
    nothing is rounded to it."""
    layers = work(tiny_checkpoint(family, dtype="bfloat16", **SHAPE), Gptq).layers
    for layer in layers.layers:
        plan = layer.piece.plan
        products = [op for op in plan.ops if isinstance(op, Linear)]
        assert products or layer is layers.layers[-1]
        assert {plan.buffers[op.x].element for op in products} <= {"bfloat16"}
        assert {each.element for each in (*layer.piece.given, *layer.piece.made)} <= {"float32"}
        assert {plan.buffers[name].element for name in plan.leaving} == {"float32"}


def test_one_layer_alone_is_in_memory_and_the_cpu_runs_it(tmp_path: Path) -> None:
    """The CPU's kernels give what the reference gives, but for rounding."""
    folder = tiny_checkpoint("qwen3", dtype="bfloat16", **SHAPE)
    done = run(work(folder, Gptq), tmp_path / "cpu", backend("cpu").bind)
    reference = run(work(folder, Gptq), tmp_path / "reference")
    for ours, other in zip(done.rounded, reference.rounded, strict=True):
        assert ours.module == other.module
        assert ours.error == pytest.approx(other.error, rel=0.2)
    assert set(open_folder(tmp_path / "cpu")) == set(open_folder(tmp_path / "reference"))

"""Whole checkpoints: what is written, what reads it, what a run that was interrupted leaves."""

from __future__ import annotations

import json
import os
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
from support.interrupted_runs import Interrupted, interrupted
from support.needs import needs_native
from support.quantized_checkpoints import logits
from support.quantized_runs import SAMPLES

from penstock.backends.registry import backend
from penstock.engine.piece_run import Bind
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import WeightSource
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant import GroupTensor
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.gptq import Order
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Gptq, Method, RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.source import SourceModel
from penstock.quantize.unfinished import RECORD
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder

SHAPE = {"intermediate_size": 96}


def work(
    folder: Path,
    method: Callable[[Integers], Method],
    *,
    bits: int = 4,
    group: int | None = 32,
    symmetric: bool = True,
    form: str = "compressed-tensors",
) -> Quantization:
    source = SourceModel(folder)
    storage = STORAGES[form]
    grid = IntegerGrid(bits, group, symmetric, storage.scale_dtype(source.spec.dtype))
    made = method(Integers(grid, storage))
    return Quantization(source, made, SAMPLES if made.calibrated else None)


def run(work: Quantization, out: Path, bind: Bind | None = None, **options: Any) -> Quantized:
    return quantize(work, out, bind or backend("reference").bind, 1, **options)


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


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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


@pytest.mark.parametrize("after", range(5))
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(after: int, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", num_hidden_layers=3, **SHAPE)
    run(work(folder, Gptq), tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        run(work(folder, Gptq), out, interrupted(after))
    assert not out.exists()
    done = run(work(folder, Gptq), out)
    assert done.resumed == after // 2  # a layer binds twice: as it is, and rounded
    assert content(out) == content(tmp_path / "whole")
    assert not out.with_name("out.partial").exists()


def test_what_a_run_left_of_something_else_is_kept_until_it_is_given_up(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    out = tmp_path / "out"
    with pytest.raises(Interrupted):
        run(work(folder, Gptq), out, interrupted(2), settings={"bits": 4})
    with pytest.raises(ConfigError, match=r"done with another bits; .*--restart"):
        run(work(folder, Gptq), out, settings={"bits": 8})
    done = run(work(folder, Gptq), out, settings={"bits": 8}, restart=True)
    assert done.resumed == 0
    assert json.loads((out / RECORD).read_text())["bits"] == 8


def test_one_process_has_a_folder_at_a_time(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    out = tmp_path / "out"

    def bind(plan: Plan, weights: WeightSource, limits: Limits) -> Executor:
        with pytest.raises(ConfigError, match="another process works on it"):
            run(work(folder, RoundToNearest), out)
        raise Interrupted

    with pytest.raises(Interrupted):
        run(work(folder, Gptq), out, bind)


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        run(work(folder, RoundToNearest), out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(ConfigError, match="there is no folder"):
        run(work(folder, RoundToNearest), tmp_path / "none" / "out")


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    folder = changed(tmp_path, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(WeightError, match=r"model\.layers\.1\.mlp\.up_proj\.weight has values"):
        run(work(folder, RoundToNearest), tmp_path / "out")
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


@pytest.mark.parametrize(("form", "bits"), [("awq", 4), ("gptq", 3)])
def test_rows_that_a_format_does_not_pack_are_refused(form: str, bits: int) -> None:
    folder = tiny_checkpoint("llama", hidden_size=64, intermediate_size=100)
    with pytest.raises(ConfigError, match=r"_proj has .*; take another --format, --bits"):
        work(folder, RoundToNearest, bits=bits, group=None, form=form)


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    folder, partial = tiny_checkpoint("llama", **SHAPE), tmp_path / "out.partial"
    partial.mkdir()
    (partial / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.partial is somebody else's"):
        run(work(folder, RoundToNearest), tmp_path / "out", restart=True)
    assert (partial / "notes.txt").read_text() == "mine"
    shutil.rmtree(partial)
    partial.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        run(work(folder, RoundToNearest), tmp_path / "out")


def test_what_an_interrupted_run_left_beside_its_layers_is_no_part_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    folder, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "out"
    with pytest.raises(Interrupted):
        run(work(folder, Gptq), out, interrupted(2))
    (tmp_path / "out.partial" / "hidden-00000.float32").write_bytes(b"left")
    run(work(folder, Gptq), out)
    assert not list(out.glob("hidden-*"))


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


def test_a_full_disk_leaves_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoint("llama", **SHAPE)
    out = tmp_path / "out"
    calls = 0
    replace_file = os.replace

    def full(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # behind the record and the first layer
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"No space left .*model-00002-of-00003\.safetensors"):
        run(work(folder, RoundToNearest), out)
    left = {path.name for path in out.with_name("out.partial").iterdir()}
    assert left == {RECORD, "model-00001-of-00003.safetensors"}
    assert run(work(folder, RoundToNearest), out).resumed == 1


@needs_native
def test_one_layer_alone_is_in_memory_and_the_cpu_runs_it(tmp_path: Path) -> None:
    """The CPU's kernels give what the reference gives, but for rounding."""
    folder = tiny_checkpoint("qwen3", dtype="bfloat16", **SHAPE)
    done = run(work(folder, Gptq), tmp_path / "cpu", backend("cpu").bind)
    reference = run(work(folder, Gptq), tmp_path / "reference")
    for ours, other in zip(done.rounded, reference.rounded, strict=True):
        assert ours.module == other.module
        assert ours.error == pytest.approx(other.error, rel=0.2)
    assert set(open_folder(tmp_path / "cpu")) == set(open_folder(tmp_path / "reference"))

"""What a run that was interrupted leaves, and one that goes on with it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_checkpoint
from support.interrupted_runs import Interrupted, interrupted
from support.quantized_runs import SHAPE, content, run, work

from penstock.errors import ConfigError
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import WeightSource
from penstock.plan.plan import Plan
from penstock.quantize.methods import Gptq, RoundToNearest
from penstock.quantize.record import RECORD


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
    with pytest.raises(ConfigError, match=r"done with another bits; "):  # and not config, too
        run(work(folder, Gptq, bits=8), out, settings={"bits": 8})
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


def test_a_disk_that_is_full_from_the_start_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record itself is not whole, so the folder does not say whose it is."""
    folder, out = tiny_checkpoint("llama", **SHAPE), tmp_path / "out"

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            run(work(folder, RoundToNearest), out)
    run(work(folder, RoundToNearest), out)
    assert not list(out.glob("*.partial"))

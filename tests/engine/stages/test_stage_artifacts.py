"""Each stage keeps its packed part of the weights as an engine artifact of its own, on its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kept_parts import build, check, entries, options, spoil
from support.needs import needs_native
from support.waiting_stage import waiting

from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine

pytestmark = [needs_native, pytest.mark.slow]

STAGES = {"pipeline_parallel": 2}
BOTH = {"pipeline_parallel": 2, "tensor_parallel": 2}


def parts(kept: Path) -> list[str]:
    """The stages and ranks whose artifacts there are."""
    found = []
    for entry in entries(kept):
        assert entry.manifest is not None
        key = entry.manifest.key
        found.append(f"{key.stage}/{key.stages} {key.rank}/{key.world}")
        assert key.part in entry.name
    return found


@pytest.mark.parametrize(
    ("parallel", "more"),
    [
        (STAGES, {}),
        pytest.param(STAGES, {"quantization": "int4"}, marks=pytest.mark.slow),
        pytest.param(BOTH, {}, marks=pytest.mark.slow),
    ],
)
def test_a_second_start_restores_the_part_of_each(
    tmp_path: Path, parallel: dict[str, Any], more: dict[str, Any]
) -> None:
    wrote = build(tmp_path, **parallel, **more)
    assert sum("wrote" in note for note in wrote) == len(parts(tmp_path))
    ranks = range(parallel.get("tensor_parallel", 1))
    expected = [f"{stage}/2 {rank}/{len(ranks)}" for stage in range(2) for rank in ranks]
    assert parts(tmp_path) == expected
    again = build(tmp_path, **parallel, **more)
    assert sum("restored" in note for note in again) == len(expected)
    assert not any("wrote" in note for note in again)
    check(tmp_path, parallel, **more)


@pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_part_that_is_damaged_is_packed_again(tmp_path: Path, stage: int) -> None:
    """Its stage alone packs, and is told what a text says of the model."""
    build(tmp_path, **STAGES, quantization="int8")
    spoil(tmp_path / entries(tmp_path)[stage].name)
    notes = build(tmp_path, **STAGES, quantization="int8")
    own = [note for note in notes if note.startswith("stage 0: ") == (stage == 0)]
    assert "is damaged in" in own[0]
    assert sum("wrote" in note for note in notes) == sum("restored" in note for note in notes) == 1
    assert sum("restored" in note for note in build(tmp_path, **STAGES, quantization="int8")) == 2
    check(tmp_path, STAGES, quantization="int8")


def test_other_numbers_of_stages_stand_side_by_side(tmp_path: Path) -> None:
    build(tmp_path, **STAGES)
    one = build(tmp_path)
    assert any("another number of stages" in note for note in one)
    assert parts(tmp_path) == ["0/1 0/1", "0/2 0/1", "1/2 0/1"]


def test_a_stage_elsewhere_keeps_its_part_there(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    model = options(here)["model"]
    with waiting(model, artifact_dir=str(there)) as stage:
        elsewhere = {"pipeline_stages": stage.address}
        build(here, **elsewhere, quantization="int8")
        assert (parts(here), parts(there)) == (["1/2 0/1"], ["0/2 0/1"])
        notes = build(here, **elsewhere, quantization="int8")
        assert sum("restored" in note for note in notes) == 2
        check(here, elsewhere, quantization="int8")


def test_an_engine_without_artifacts_has_none_kept_elsewhere(tmp_path: Path) -> None:
    asked = options(tmp_path, artifact_dir=None, artifact=False)
    with waiting(asked["model"], artifact_dir=str(tmp_path)) as stage:
        config = EngineConfig(**asked, pipeline_stages=stage.address)
        load(plan_engine(config), keeping="worthwhile").close()
    assert entries(tmp_path) == []


def test_bounds_that_stages_are_built_for(tmp_path: Path) -> None:
    build(tmp_path, **STAGES, max_input_len=30, max_output_len=10)
    planned = plan_engine(EngineConfig(**options(tmp_path, **STAGES)))
    assert planned.config.max_model_len == 40
    assert planned.config.built is not None
    load(planned, keeping="never").close()


def test_a_folder_without_artifacts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", "--no-artifact", "--artifact-dir", "/x"]) == 2
    assert "artifact_dir /x has no effect, since artifacts are off" in capsys.readouterr().err

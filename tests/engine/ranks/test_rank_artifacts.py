"""Each rank keeps its packed part of the weights as an engine artifact of its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.kept_parts import build, check, entries, options, spoil
from support.needs import needs_native

from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import ArtifactError

pytestmark = needs_native

RANKS = {"tensor_parallel": 2}


@pytest.mark.parametrize(
    "more", [{}, pytest.param({"quantization": "int4"}, marks=pytest.mark.slow)]
)
def test_a_second_start_restores_the_part_of_each(tmp_path: Path, more: dict[str, Any]) -> None:
    wrote = build(tmp_path, **RANKS, **more)
    assert wrote[0].startswith("wrote")
    assert wrote[1].startswith("rank 1: wrote")
    first, second = (entry.manifest for entry in entries(tmp_path))
    assert first is not None
    assert second is not None
    assert (first.key.rank, first.key.world) == (0, 2)
    assert (second.key.rank, second.key.world) == (1, 2)
    assert first.key.plan != second.key.plan
    names = [entry.name for entry in entries(tmp_path)]
    assert [name.split("-")[-2] for name in names] == ["rank0of2", "rank1of2"]
    again = build(tmp_path, **RANKS, **more)
    assert [note.split(" ")[0] for note in again] == ["restored", "rank"]
    assert again[1].startswith("rank 1: restored")
    assert len(entries(tmp_path)) == 2
    check(tmp_path, RANKS, **more)


@pytest.mark.slow
def test_a_part_that_is_damaged_is_packed_again(tmp_path: Path) -> None:
    """Its rank alone packs, and is told what rank 0 measures for it of the text."""
    build(tmp_path, **RANKS, quantization="int8")
    spoil(tmp_path / entries(tmp_path)[1].name)
    notes = build(tmp_path, **RANKS, quantization="int8")
    assert notes[0].startswith("restored")
    assert "is damaged in" in notes[1]
    assert notes[1].startswith("rank 1: ")
    assert notes[2].startswith("rank 1: wrote")
    last = build(tmp_path, **RANKS, quantization="int8")
    assert last[1].startswith("rank 1: restored")
    check(tmp_path, RANKS, quantization="int8")


@pytest.mark.slow
def test_other_numbers_of_ranks_stand_side_by_side(tmp_path: Path) -> None:
    build(tmp_path, **RANKS)
    one = build(tmp_path, tensor_parallel=1)
    assert any("another number of ranks" in note for note in one)
    assert len(entries(tmp_path)) == 3
    build(tmp_path, tensor_parallel=3)
    assert len(entries(tmp_path)) == 6


def test_what_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError):
        build(tmp_path / "file" / "below", **RANKS)


@pytest.mark.slow
def test_bounds_that_ranks_are_built_for(tmp_path: Path) -> None:
    build(tmp_path, **RANKS, max_input_len=30, max_output_len=10)
    planned = plan_engine(EngineConfig(**options(tmp_path, tensor_parallel=2)))
    assert planned.config.max_model_len == 40
    assert planned.config.built is not None
    load(planned, keeping="never", note=logging.log).close()

"""What models are expected to take in memory, and what processes do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.config import EngineConfig
from penstock.errors import ModelError
from penstock.server.models.footprint import PROCESS_BYTES, expected_bytes, process_bytes


def expected(path: Path) -> int:
    """What a model's weights are counted as."""
    config = EngineConfig(model=str(path), kv_cache_bytes=1000)
    return expected_bytes(config) - PROCESS_BYTES - 1000


def test_weights_count_as_they_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert expected(folder) == 0
    for i in range(2):
        (folder / f"model-{i}.safetensors").write_bytes(bytes(30))
    (folder / "pytorch_model.bin").write_bytes(bytes(50))  # the same weights again
    assert expected(folder) == 60


def test_all_parts_of_a_gguf_file_count(tmp_path: Path) -> None:
    for name, size in (("a-00001-of-00002", 7), ("a-00002-of-00002", 8), ("b-00001-of-00002", 9)):
        (tmp_path / f"{name}.gguf").write_bytes(bytes(size))
    assert expected(tmp_path / "a-00001-of-00002.gguf") == 15
    (tmp_path / "one-of-many.gguf").write_bytes(bytes(5))
    assert expected(tmp_path / "one-of-many.gguf") == 5


def test_a_model_that_is_nowhere() -> None:
    with pytest.raises(ModelError, match="there is no folder /nowhere"):
        expected(Path("/nowhere"))


def test_processes() -> None:
    assert process_bytes(os.getpid()) > 10 << 20
    assert process_bytes(2**22 + 1) == 0

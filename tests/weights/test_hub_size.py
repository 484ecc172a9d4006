"""What is counted as downloaded; the hub is replaced, for tests do not use the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from penstock.weights.hub_size import is_downloaded


@pytest.mark.parametrize(
    ("files", "whole"),
    [
        ({"config.json", "tokenizer.json", "model.safetensors"}, True),
        ({"config.json", "model.safetensors"}, False),
        ({"config.json", "tokenizer.json"}, False),
        ({"config.json", "tokenizer.json", "index", "a.safetensors", "b.safetensors"}, True),
        ({"config.json", "tokenizer.json", "index", "a.safetensors"}, False),
        (set(), False),
    ],
)
def test_a_download_that_broke_off_is_none(
    files: set[str], whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files - {"index"}:
        (tmp_path / name).touch()
    if "index" in files:
        index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert is_downloaded("o/m") == whole


def test_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    assert not is_downloaded("o/m")

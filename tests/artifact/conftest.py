from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.needs import require_native

Configure = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _native_code() -> None:
    require_native()


@pytest.fixture(autouse=True)
def _any_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept by the way does not depend on how full this machine's disk is."""
    monkeypatch.setattr("penstock.artifact.session.KEEP_FREE", 0.0)


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Makes the folder of a model that has a configuration alone, for dummy weights."""

    def make(name: str = "tiny", **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": 300,
            "hidden_size": 96,
            "intermediate_size": 200,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_act": "silu",
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "eos_token_id": 0,
        }
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return make

"""What transformers computes from a file that Penstock wrote is what the checkpoint computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint

from penstock.convert.conversion import convert
from penstock.convert.types import FILE_TYPES

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16, "head_dim": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "head_dim": 16},
    "phi3": {"sliding_window": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_logits(family: str, kind: str, tmp_path: Path) -> None:
    import torch
    import transformers

    folder = tiny_checkpoint(family, **FAMILIES[family])
    convert(folder, tmp_path / "model.gguf", FILE_TYPES[kind], threads=2)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.arange(1, 60)[None]
    with torch.no_grad():
        expected = load_oracle(folder)(tokens).logits.numpy()
        found = model.eval()(tokens).logits.numpy()
    tolerance = 1e-4 if kind == "F32" else 1e-3
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= tolerance * scale

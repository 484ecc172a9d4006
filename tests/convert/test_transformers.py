"""What transformers computes from a file that Penstock wrote is what the checkpoint computes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint
from support.needs import Need, lacking

from penstock.convert.conversion import convert
from penstock.convert.types import FILE_TYPES

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "gemma2": {
        "query_pre_attn_scalar": 256,
        "head_dim": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        "query_pre_attn_scalar": 256,
        "head_dim": 256,
        "layer_types": ["sliding_attention"] * 3,
    },
    "phi3": {"sliding_window": None},
}
"""What transformers takes forms to be that it does not read from files."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_logits(family: str, kind: str, tmp_path: Path) -> None:
    import torch
    import transformers

    if find_spec("accelerate") is None:
        lacking(Need.PACKAGE, "accelerate, without which transformers opens no GGUF file")
    dtype = "float32" if kind == "F32" else "float16"
    folder = tiny_checkpoint(family, dtype=dtype, **FAMILIES[family])
    convert(folder, tmp_path / "model.gguf", FILE_TYPES[kind], threads=2)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.arange(1, 60)[None]
    with torch.no_grad():
        expected = load_oracle(folder)(tokens).logits.numpy()
        found = model.eval()(tokens).logits.numpy()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()

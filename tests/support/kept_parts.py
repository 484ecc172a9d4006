"""Engines of several processes, each of which keeps its packed part of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from penstock.artifact.store import ArtifactStore, Entry
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from support.bitwise import Requests, prompt
from support.checkpoints import tiny_checkpoint

REQUESTS = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((3, 40))],
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2),
)


def options(kept: Path, **more: Any) -> dict[str, Any]:
    heads: dict[str, Any] = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
    }
    model = tiny_checkpoint("qwen3", dtype="bfloat16", vocab_size=512, **heads)
    return {"model": str(model), "backend": "cpu", "artifact_dir": str(kept), **more}


def build(kept: Path, **more: Any) -> list[str]:
    """Start an engine whose packed weights are kept, and return what was noted."""
    notes: list[str] = []
    config = EngineConfig(**options(kept, **more))
    load(
        plan_engine(config, as_built=False),
        note=lambda level, text: notes.append(text),
        keeping="always",
    ).close()
    return notes


def entries(kept: Path) -> list[Entry]:
    return ArtifactStore(kept).entries()


def check(kept: Path, parallel: dict[str, Any], **more: Any) -> None:
    """What the processes of an engine compute that start from what is kept is what one computes."""
    with LLM(**options(kept, artifact_dir=None, artifact=False, **more)) as one:
        expected = REQUESTS.together(one)
    with LLM(**options(kept, **parallel, **more)) as several:
        assert REQUESTS.together(several) == expected


def spoil(folder: Path) -> None:
    """Change a bit of the weights in an artifact."""
    (weights,) = (file for file in folder.iterdir() if file.stat().st_size > 20_000)
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)

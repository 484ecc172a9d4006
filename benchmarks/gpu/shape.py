"""Which published shape fits a GPU."""

from __future__ import annotations

from pathlib import Path

from penstock.backends.cuda.backend import BATCHED_TOKENS
from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import ConfigError
from penstock.models.spec import ModelSpec
from penstock.plan.lower import lower
from penstock.weights.model_folder import load_model_spec

SHAPES = ("llama-3.1-8b", "llama-3.2-1b")
_SEQUENCES, _CONTEXT = 64, 1024 + 160
"""The largest decode batch, and what each of it holds in the end."""
_OTHER = 3 << 30
"""Kernels, graphs, activations, and what the driver takes."""


def bytes_needed(spec: ModelSpec) -> int:
    """Device memory for weights in bfloat16, the largest decode batch, and a step's logits."""
    plan = lower(spec)
    weights = 2 * plan.num_parameters
    blocks = _SEQUENCES * -(-_CONTEXT // BLOCK_SIZE)
    cache = blocks * sum(layer.block_bytes("bfloat16") for layer in plan.kv_layers)
    return weights + cache + 4 * spec.vocab_size * BATCHED_TOKENS + _OTHER


def choose_shape(configs: Path, free_bytes: int) -> Path:
    """The first of ``SHAPES`` in the folder ``configs`` that fits; raises ConfigError for none."""
    needed = {}
    for name in SHAPES:
        needed[name] = bytes_needed(load_model_spec(configs / name))
        if needed[name] <= free_bytes:
            return configs / name
    least = min(needed.values())
    raise ConfigError(
        f"{free_bytes / 2**30:.1f} GiB are free on the GPU and the smallest shape, {SHAPES[-1]}, "
        f"takes {least / 2**30:.1f} GiB; end other programs that use it (see nvidia-smi)"
    )

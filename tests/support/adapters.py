"""Random LoRA adapters of tests' checkpoints, as PEFT saves them, and checkpoints they are merged
into.

    folder = write_adapter(tmp_path / "a", base, seed=1, rank=4)
    merged = merge(tmp_path / "merged", base, folder)
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL = (*ATTENTION, *MLP)


def write_adapter(
    folder: Path,
    base: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = ALL,
    ranks: Callable[[str], int] | None = None,
    transposed: bool = False,
    size: float = 0.5,
    **config: Any,
) -> Path:
    """An adapter of every module of ``base`` whose name ends in one of ``targets``.

    ``ranks`` is the rank of each module where these differ. ``transposed``: the base has its
    matrices as ``[inputs, outputs]``. ``size``: of its part, relative to the base's matrices.
    ``config`` are fields of adapter_config.json.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, weight in sorted(load_file(base / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if weight.ndim != 2 or not module.endswith(tuple(f".{each}" for each in targets)):
            continue
        n, k = weight.shape[::-1] if transposed else weight.shape
        own = rank if ranks is None else ranks(module)
        scale = math.sqrt(size * float(np.abs(weight.astype(np.float32)).std()) / math.sqrt(own))
        at = f"base_model.model.{module}"
        for side, shape in (("A", (own, k)), ("B", (n, own))):
            values = rng.standard_normal(shape) * scale
            tensors[f"{at}.lora_{side}.weight"] = values.astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder


def merge(folder: Path, base: Path, adapter: Path, *, transposed: bool = False) -> Path:
    """A checkpoint like ``base`` with ``adapter`` added to its weights, in float64 until they are
    rounded."""
    shutil.copytree(base, folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights = load_file(base / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, down in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_A\.weight", name)
        if found is None:
            continue
        module = found[1]
        up = tensors[name.replace("lora_A", "lora_B")].astype(np.float64)
        rank, alpha = (
            _of(config, "rank_pattern", module, "r"),
            _of(config, "alpha_pattern", module, "lora_alpha"),
        )
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        delta = scale * (up @ down.astype(np.float64))
        weight = weights[f"{module}.weight"]
        changed = weight.astype(np.float64) + (delta.T if transposed else delta)
        weights[f"{module}.weight"] = changed.astype(weight.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _of(config: dict[str, Any], pattern: str, module: str, otherwise: str) -> float:
    for key, value in config.get(pattern, {}).items():
        if re.fullmatch(rf"(.*\.)?({key})", module):
            return float(value)
    return float(config[otherwise])

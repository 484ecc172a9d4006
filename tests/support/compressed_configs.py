"""Configurations of checkpoints in compressed-tensors' formats."""

from __future__ import annotations

from typing import Any

PACK, INT, FLOAT, NAIVE = (f"{kind}-quantized" for kind in ("pack", "int", "float", "naive"))


def group(weights: dict[str, Any], *targets: str, **fields: Any) -> dict[str, Any]:
    return {
        "targets": list(targets) or ["Linear"],
        "weights": {"dynamic": False, "observer": "minmax", "observer_kwargs": {}, **weights},
        "input_activations": None,
        "output_activations": None,
        **fields,
    }


def config(form: str, *groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {f"group_{i}": each for i, each in enumerate(groups)},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
        **fields,
    }


def integers(bits: int, strategy: str, size: int | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": size,
        **fields,
    }


def floats(bits: int, strategy: str, **fields: Any) -> dict[str, Any]:
    own = {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy}
    return {**own, "group_size": None, **fields}

"""Exports a checkpoint folder as compressed-tensors checkpoints for vLLM; runs in its environment.

    python compressed_checkpoint.py CHECKPOINT OUT_DIR int4 int8

int4: weights in groups of 128, symmetric, activations as vLLM's kernel takes them; int8: weights
with a scale per row, activations rounded per token while it runs. Both leave the output matrix
and the embedding in bfloat16, as vLLM's own quantizer does.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 128
PER_INT32 = 8  # 4-bit codes
Tensors = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("precisions", nargs="+", choices=("int4", "int8"))
    args = parser.parse_args()
    for precision in args.precisions:
        target, partial = args.out / precision, args.out / f"{precision}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        export(args.checkpoint, partial, precision)
        partial.rename(target)


def export(checkpoint: Path, out: Path, precision: str) -> None:
    out.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(checkpoint / name, out / name)
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = scheme(precision)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    quantize = to_int4 if precision == "int4" else to_int8
    tensors: Tensors = {}
    with safe_open(str(checkpoint / "model.safetensors"), "pt") as file:
        for name in sorted(file.keys()):
            weight = file.get_tensor(name)
            if name.endswith("_proj.weight"):
                tensors.update(quantize(name, weight))
            else:
                tensors[name] = weight
    save_file(tensors, str(out / "model.safetensors"), {"format": "pt"})


def scheme(precision: str) -> dict[str, Any]:
    """The ``quantization_config`` of the format."""
    bits = {"type": "int", "symmetric": True, "dynamic": False}
    if precision == "int4":
        layout = "pack-quantized"
        weights = {**bits, "num_bits": 4, "strategy": "group", "group_size": GROUP}
        activations = None
    else:
        layout = "int-quantized"
        weights = {**bits, "num_bits": 8, "strategy": "channel"}
        activations = {**bits, "num_bits": 8, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def to_int8(name: str, weight: torch.Tensor) -> Tensors:
    """Codes ``[n, k]`` int8, scales ``[n, 1]``."""
    values = weight.float()
    scale = (values.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    codes = (values / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {name: codes, f"{name}_scale": scale}


def to_int4(name: str, weight: torch.Tensor) -> Tensors:
    """Codes plus 8, eight to an int32 along k with the first lowest; scales ``[n, k / 128]``."""
    n, k = weight.shape
    groups = weight.float().view(n, k // GROUP, GROUP)
    scale = (groups.abs().amax(2, keepdim=True) / 7.5).to(torch.bfloat16)
    codes = (groups / scale.float()).round().clamp(-8, 7).view(n, k).to(torch.int32) + 8
    packed = torch.zeros(n, k // PER_INT32, dtype=torch.int32)
    for i in range(PER_INT32):
        packed |= codes[:, i::PER_INT32] << (4 * i)
    return {
        f"{name}_packed": packed,
        f"{name}_scale": scale.squeeze(2),
        f"{name}_shape": torch.tensor([n, k]),
    }


if __name__ == "__main__":
    main()

"""Tiny checkpoints in GPTQ's format, packed value by value, and what their weights stand for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from support.checkpoints import tiny_checkpoint

F32 = NDArray[np.float32]

_FLOATS = (".mlp.gate", ".block_sparse_moe.gate", ".shared_expert_gate")
"""What chooses experts and weighs them, which no tool quantizes."""

PACKED_VOCAB = 304
"""Vocabulary of checkpoints whose output matrix is quantized: words hold 4 or 8 codes."""


def pack_along_rows(codes: NDArray[np.int64], bits: int) -> NDArray[np.int32]:
    """Unsigned codes ``[count, n]``, each column's one after another in its words, the first
    lowest; one of 3 bits may begin in a word and end in the next."""
    words = np.zeros((len(codes) * bits // 32 + 1, codes.shape[1]), np.uint64)
    for i, row in enumerate(codes.astype(np.uint64)):
        word, place = divmod(i * bits, 32)
        both = row << np.uint64(place)
        words[word] |= both & np.uint64(0xFFFFFFFF)
        words[word + 1] |= both >> np.uint64(32)
    return words[:-1].astype(np.uint32).view(np.int32)


class Quantized:
    """A random matrix ``[n, k]`` in codes, of which a few groups have unusual zero points."""

    def __init__(
        self,
        generator: np.random.Generator,
        n: int,
        k: int,
        bits: int,
        group: int,
        sym: bool,
        shuffled: bool,
    ) -> None:
        self.bits = bits
        size = k if group == -1 else group
        self.groups = -(-k // size)
        top = 2**bits
        self.codes = generator.integers(0, top, (n, k))
        self.codes[0, 0], self.codes[-1, -1] = 0, top - 1
        self.zeros = np.full((n, self.groups), top // 2)
        if not sym:
            self.zeros = generator.integers(1, top, (n, self.groups))
        self.scales = (generator.random((n, self.groups)) * 3 / (top * k**0.5)).astype(np.float16)
        self.group_of = np.arange(k) // size
        if shuffled:
            self.group_of = generator.permutation(self.group_of)

    def values(self) -> F32:
        points = self.codes - self.zeros[:, self.group_of]
        values: F32 = points.astype(np.float32) * self.scales.astype(np.float32)[:, self.group_of]
        return values

    def tensors(self, name: str, v1: bool) -> dict[str, Any]:
        stored = (self.zeros - v1) % 2**self.bits
        return {
            f"{name}.qweight": pack_along_rows(self.codes.T, self.bits),
            f"{name}.qzeros": np.ascontiguousarray(pack_along_rows(stored, self.bits).T),
            f"{name}.scales": np.ascontiguousarray(self.scales.T),
            f"{name}.g_idx": self.group_of.astype(np.int32),
        }


def gptq_checkpoint(
    at: Path,
    *,
    family: str = "llama",
    bits: int = 4,
    group: int = 32,
    sym: bool = True,
    version: str = "gptq",
    index: bool = True,
    nil_biases: bool = False,
    zero: int | None = None,
    shuffled: bool = False,
    lm_head: bool = False,
    config: Mapping[str, Any] | None = None,
    **fields: Any,
) -> tuple[Path, Path]:
    """A checkpoint and one of the float32 values that its weights stand for.

    ``zero``: one zero point of every matrix. ``shuffled``: groups are of any columns. ``lm_head``:
    the output matrix is quantized, too, of a vocabulary that can be packed. ``config``: changes of
    the family's configuration. ``fields``: more of quantization_config.
    """
    size: dict[str, Any] = {"vocab_size": PACKED_VOCAB} if lm_head else {}
    plain = tiny_checkpoint(family, **{"intermediate_size": 96, **size, **(config or {})})
    generator = np.random.default_rng(5)
    packed, floats = at / "packed", at / "floats"
    for folder in (packed, floats):
        shutil.copytree(plain, folder)
    tensors: dict[str, Any] = load_file(plain / "model.safetensors")
    dequantized = dict(tensors)
    for name in list(tensors):
        module = name.removesuffix(".weight")
        quantized = name.startswith("model.layers.") or (lm_head and module == "lm_head")
        quantized &= not module.endswith(_FLOATS)
        if not quantized or tensors[name].ndim != 2:
            continue
        n, k = tensors.pop(name).shape
        matrix = Quantized(generator, n, k, bits, group, sym, shuffled)
        if zero is not None:
            matrix.zeros[1, -1] = zero
        own = matrix.tensors(module, version == "gptq")
        if not index:
            del own[f"{module}.g_idx"]
        if nil_biases:
            own[f"{module}.bias"] = np.zeros(len(matrix.codes), np.float16)
        tensors |= own
        dequantized[name] = matrix.values()
    save_file(tensors, packed / "model.safetensors")
    save_file(dequantized, floats / "model.safetensors")
    written = json.loads((packed / "config.json").read_text())
    written["quantization_config"] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "checkpoint_format": version,
        "lm_head": lm_head,
        **fields,
    }
    (packed / "config.json").write_text(json.dumps(written))
    return packed, floats


def edit_tensors(folder: Path, **changes: Any) -> None:
    """Rewrite tensors of the checkpoint: a function of the old array, or None for none."""
    tensors = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name].copy())
    save_file(tensors, folder / "model.safetensors")

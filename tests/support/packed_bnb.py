"""Matrices of 4 bits as bitsandbytes writes them, for checkpoints of tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES
from support.quantized_checkpoints import Pack


def four(
    kind: str = "nf4",
    nested: bool = False,
    skipped: tuple[str, ...] = ("lm_head",),
    drawn: bool = False,
) -> Pack:
    """``drawn``: the table is one at random, as no tool writes it."""

    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        if any(name in f"{module}." for name in skipped):
            return None
        values_of = NF4_VALUES if kind == "nf4" else FP4_VALUES
        table = np.array(values_of, np.float32)
        if drawn:
            table = np.sort(generator.uniform(-1, 1, 16)).astype(np.float32)
        codes = generator.integers(0, 16, n * k)
        padded = np.append(codes, np.zeros(n * k % 2, int))
        blocks = -(-n * k // 64)
        state: dict[str, Any] = {
            "quant_type": kind,
            "blocksize": 64,
            "dtype": "bfloat16",
            "shape": [n, k],
        }
        own: dict[str, Any] = {
            "weight": (padded[::2] << 4 | padded[1::2]).astype(np.uint8)[:, None],
            "weight.quant_map": table,
        }
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.05}
            rounded = generator.integers(0, 256, blocks).astype(np.uint8)
            places = np.linspace(-1, 1, 256).astype(np.float32)
            maxima = (generator.random(-(-blocks // 256)) * 0.04).astype(np.float32)
            own |= {
                "weight.absmax": rounded,
                "weight.nested_absmax": maxima,
                "weight.nested_quant_map": places,
            }
            each = np.repeat(maxima, 256)[:blocks]
            absmax = places[rounded] * each + np.float32(0.05)
        else:
            absmax = generator.random(blocks).astype(np.float32) * np.float32(0.1)
            absmax[0] = 0  # a block of zeros
            own["weight.absmax"] = absmax
        text = json.dumps(state).encode()
        own[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
        values = table[codes] * np.repeat(absmax, 64)[: n * k]
        return own, values.reshape(n, k)

    return pack

"""The number of the packed layout changes with what packing writes.

Packs fixed weights and compares a checksum of their bytes with the one recorded for the layout's
number. Where this fails because the layout was changed on purpose: add one to kPackedLayout in
csrc/packed_layout.h and record here what the message says.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.interface.executor import Limits
from penstock.interface.weights import Place
from penstock.plan.ops import Linear
from penstock.plan.plan import Plan
from penstock.quant import CodebookMatrix, CodebookScheme, LatticeMatrix, LatticeScheme
from penstock.quant.scheme import CodebookBits, LatticeBits

LAYOUT = 3
RECORDED = {
    "float32": 0x76C52FD2,
    "float16": 0xF2BB2646,
    "bfloat16": 0xB43D72F0,
    "int8": 0x2E10EB49,
    "int8 by 128": 0x1D91CC4C,
    "int4": 0x8BFF2916,
    "int4 by 64": 0x84E3EA59,
    "int4 by 32": 0x29651690,
    "int8 by 64 with zero points": 0x56C4DD72,
    "int4 by 32 with zero points": 0x51F56272,
    "int4, float activations": 0xC7CB4969,
    "codebooks of 3 bits": 0x247641C1,
    "codebooks of 4 bits, float32": 0x9B5E3E20,
    "lattice points of 3 bits": 0x5A8A4160,
    "lattice points of 4 bits, float32": 0xD95B2C6D,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "float16": {"dtype": "float16"},
    "bfloat16": {},
    "int8": {"quantization": "int8"},
    "int8 by 128": {"quantization": "int8", "quantization_group": 128},
    "int4": {"quantization": "int4"},
    "int4 by 64": {"quantization": "int4", "quantization_group": 64},
    "int4 by 32": {"quantization": "int4", "quantization_group": 32},
    "int8 by 64 with zero points": {
        "quantization": "int8",
        "quantization_group": 64,
        "quantization_zero_points": True,
    },
    "int4 by 32 with zero points": {
        "quantization": "int4",
        "quantization_group": 32,
        "quantization_zero_points": True,
    },
    "int4, float activations": {"quantization": "int4", "quantize_activations": False},
    "codebooks of 3 bits": {},
    "codebooks of 4 bits, float32": {"dtype": "float32"},
    "lattice points of 3 bits": {},
    "lattice points of 4 bits, float32": {"dtype": "float32"},
}
LATTICE_BITS: dict[str, LatticeBits] = {
    "lattice points of 3 bits": 3,
    "lattice points of 4 bits, float32": 4,
}
CODEBOOK_BITS: dict[str, CodebookBits] = {
    "codebooks of 3 bits": 3,
    "codebooks of 4 bits, float32": 4,
}


class FixedWeights:
    """Values that every type holds exactly, of integer arithmetic alone: the same for ever."""

    def __init__(self, plan: Plan) -> None:
        self._shapes = {name: weight.shape for name, weight in plan.weights.items()}
        products = (op for op in plan.ops if isinstance(op, Linear))
        self._schemes = {part.weight: op.scheme for op in products for part in op.parts}

    def names(self) -> Iterable[str]:
        return self._shapes

    def get(self, name: str) -> np.ndarray | CodebookMatrix | LatticeMatrix:
        scheme = self._schemes.get(name)
        if isinstance(scheme, LatticeScheme):
            return self._in_points(name, scheme)
        if isinstance(scheme, CodebookScheme):
            return self._in_codebooks(name, scheme)
        count = int(np.prod(self._shapes[name]))
        mixed = np.arange(count, dtype=np.uint32) * np.uint32(2654435761)
        mixed += np.uint32(zlib.crc32(name.encode()))
        values = (mixed >> np.uint32(25)).astype(np.float32) - np.float32(64)
        return (values / np.float32(256)).reshape(self._shapes[name])

    def _in_points(self, name: str, scheme: LatticeScheme) -> LatticeMatrix:
        n, k = self._shapes[name]
        mixed = np.arange(n * -(-k // 8) * scheme.bits, dtype=np.uint32) * np.uint32(2654435761)
        codes = (mixed >> np.uint32(24)).astype(np.uint8).reshape(n, -1, scheme.bits)
        return LatticeMatrix(scheme, codes, np.float32(0.5), k)

    def _in_codebooks(self, name: str, scheme: CodebookScheme) -> CodebookMatrix:
        n, k = self._shapes[name]
        bits, count = scheme.bits, scheme.outlier_count(n, k)
        mixed = np.arange(n * -(-k * bits // 32), dtype=np.uint32) * np.uint32(2654435761)
        codes = mixed.view(np.int32).reshape(n, -1)
        values = np.arange(n << bits, dtype=np.float32).reshape(n, -1) / np.float32(256)
        flat = np.arange(count) * (n * k // count)
        ends = np.searchsorted(flat, np.arange(n + 1) * k).astype(np.int32)
        columns, outliers = (flat % k).astype(np.int32), flat.astype(np.float32)
        return CodebookMatrix(scheme, codes, values, ends, columns, outliers, k)


@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("form", OPTIONS)
def test_packed_bytes_are_those_of_the_layouts_number(
    configure: Any, tmp_path: Path, isa: str, form: str
) -> None:
    # Widths that fill neither panels nor groups, and the qkv biases of this family.
    sizes: dict[str, Any] = {"hidden_size": 88, "intermediate_size": 150, "vocab_size": 301}
    if form in CODEBOOK_BITS:
        sizes["quantization_config"] = {
            "quant_method": "penstock-squeezellm",
            "bits": CODEBOOK_BITS[form],
            "outliers": 0.01,
            "modules_to_not_convert": ["lm_head"],
        }
    if form in LATTICE_BITS:
        sizes["hidden_size"], sizes["intermediate_size"] = 96, 160  # whole numbers of 32 columns
        sizes["quantization_config"] = {
            "quant_method": "quip",
            "codebook": "E8P",
            "bits": LATTICE_BITS[form],
            "seed": 5,
            "modules_to_not_convert": ["lm_head"],
        }
    model = configure(**sizes)
    engine_plan = plan_engine(EngineConfig(model=str(model), load_format="dummy", **OPTIONS[form]))
    module = native.load(isa)
    executor = bind(engine_plan.plan, FixedWeights(engine_plan.plan), Limits(8, 8, 8, 1, 2), module)
    places = [Place(i, 0) for i in range(len(executor.packed.names))]
    with (tmp_path / "bytes").open("wb") as file:
        checksums = executor.packed.write(file.fileno(), places, 1 << 30)
    executor.close()
    described = [*zip(executor.packed.names, executor.packed.sizes, checksums, strict=True)]
    checksum = zlib.crc32(repr(described).encode())
    assert (module.packed_layout, checksum) == (LAYOUT, RECORDED[form]), (
        f"packing writes other bytes than layout {LAYOUT} has ({form}: {checksum:#010x}); add one "
        "to kPackedLayout in csrc/packed_layout.h and record the new checksums here"
    )

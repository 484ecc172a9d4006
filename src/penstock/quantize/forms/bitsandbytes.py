"""NF4 and FP4, as bitsandbytes stores them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.models.bitsandbytes import BLOCK, METHOD, NESTED_BLOCK
from penstock.models.spec import DType
from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES
from penstock.quantize.forms.small_floats import CodedFloats
from penstock.quantize.grid import F32

NESTED: Final = "weight.absmax"
"""The tensor of blocks' largest magnitudes: codes, where these are rounded, too."""
_TABLES: Final = {"nf4": NF4_VALUES, "fp4": FP4_VALUES}


@dataclass(frozen=True)
class Bnb4:
    """16 values, times the largest magnitude of each 64 weights, row after row.

    ``nested``: these magnitudes are rounded to 8 bits, too ("double quantization").
    """

    kind: Literal["nf4", "fp4"]
    nested: bool
    dtype: DType
    """The type in which the model is run."""

    group_size: None = None

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        return {
            "quant_method": METHOD,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": self.kind,
            "bnb_4bit_use_double_quant": self.nested,
            "bnb_4bit_compute_dtype": self.dtype,
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(floats),
        }

    def of_joined(self, matrices: Sequence[F32]) -> Bnb4:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> CodedFloats:
        """Round to the nearest value of the table; half-way to the lower one, as bitsandbytes
        compares."""
        n, k = matrix.shape
        count = n * k
        blocks = -(-count // BLOCK)
        flat = np.zeros(blocks * BLOCK, np.float32)
        flat[:count] = matrix.reshape(-1)
        maxima: F32 = np.abs(flat).reshape(blocks, BLOCK).max(axis=1)
        table = np.array(_TABLES[self.kind], np.float32)
        divisors: F32 = np.where(maxima > 0, maxima, np.float32(1))
        scaled: F32 = np.divide(flat.reshape(blocks, BLOCK), divisors[:, None], dtype=np.float32)
        codes = _nearest(scaled, table).reshape(-1)
        even = np.append(codes[:count], np.zeros(count % 2, np.uint8))
        state: dict[str, object] = {
            "quant_type": self.kind,
            "blocksize": BLOCK,
            "dtype": self.dtype,
            "shape": [n, k],
        }
        tensors: dict[str, NDArray[np.generic]] = {
            "weight": (even[::2] << np.uint8(4) | even[1::2])[:, None],
            "weight.quant_map": table,
        }
        if self.nested:
            nested = Nested.of(maxima)
            rounded = nested.codes(maxima)
            state |= {
                "nested_blocksize": NESTED_BLOCK,
                "nested_dtype": "float32",
                "nested_offset": float(nested.offset),
            }
            tensors |= {
                NESTED: rounded,
                "weight.nested_absmax": nested.outer,
                "weight.nested_quant_map": dynamic_map(),
            }
            maxima = nested.values(rounded)
        else:
            tensors[NESTED] = maxima
        text = json.dumps(state).encode()
        tensors[f"weight.quant_state.bitsandbytes__{self.kind}"] = np.frombuffer(text, np.uint8)
        values = table[codes].reshape(blocks, BLOCK) * maxima[:, None]
        return CodedFloats(values.reshape(-1)[:count].reshape(n, k), tensors)

    def parts(self, made: CodedFloats) -> tuple[F32, F32, Nested | None]:
        """What codes stand for before they are multiplied, ``[n, k]``, the largest magnitudes of
        blocks as they are read, and how these are rounded, if they are."""
        tensors, (n, k) = made.tensors, made.values.shape
        octets = tensors["weight"].reshape(-1).astype(np.uint8)
        codes = np.stack([octets >> np.uint8(4), octets & np.uint8(15)], axis=1).reshape(-1)
        points = np.array(_TABLES[self.kind], np.float32)[codes[: n * k]].reshape(n, k)
        if not self.nested:
            return points, tensors[NESTED].astype(np.float32), None
        state = tensors[f"weight.quant_state.bitsandbytes__{self.kind}"]
        offset = np.float32(json.loads(state.tobytes())["nested_offset"])
        nested = Nested(tensors["weight.nested_absmax"].astype(np.float32), offset)
        return points, nested.values(tensors[NESTED].astype(np.uint8)), nested


@dataclass(frozen=True)
class Nested:
    """How largest magnitudes of blocks are rounded to 8 bits: less ``offset``, to a value of
    :func:`dynamic_map` times the largest such difference of each 256, ``outer``."""

    outer: F32
    offset: np.float32

    @classmethod
    def of(cls, maxima: F32) -> Nested:
        """What is made of ``maxima``, float32 ``[blocks]``."""
        offset = maxima.mean(dtype=np.float32)
        count = len(maxima)
        padded = np.zeros(-(-count // NESTED_BLOCK) * NESTED_BLOCK, np.float32)
        padded[:count] = maxima - offset
        return cls(np.abs(padded.reshape(-1, NESTED_BLOCK)).max(axis=1), offset)

    def codes(self, maxima: F32) -> NDArray[np.uint8]:
        """The nearest codes, of which none stands for a negative magnitude."""
        outer = self._of_blocks(len(maxima))
        divisors: F32 = np.where(outer > 0, outer, np.float32(1))
        scaled: F32 = np.divide(maxima - self.offset, divisors, dtype=np.float32)
        codes = _nearest(scaled, dynamic_map())
        # Of a block of zeros the nearest code may be the one below it: the next is above.
        return codes + (self.values(codes) < 0).astype(np.uint8)

    def values(self, codes: NDArray[np.uint8]) -> F32:
        """What codes stand for."""
        return dynamic_map()[codes] * self._of_blocks(len(codes)) + self.offset

    def _of_blocks(self, count: int) -> F32:
        return np.repeat(self.outer, NESTED_BLOCK)[:count]


def dynamic_map() -> F32:
    """The 256 values of bitsandbytes' dynamic type, ascending, from -1 to 1.

    Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021 (arXiv 2110.02861): a decade
    from 1e-7 on has twice as many values as the one below it, evenly apart.
    """
    values: list[np.float32] = [np.float32(0), np.float32(1)]
    for decade in range(7):
        edges = _evenly(2**decade + 1)
        middles = (edges[:-1] + edges[1:]) / np.float32(2) * np.float32(10.0 ** (decade - 6))
        values += [*middles, *-middles]
    return np.sort(np.array(values, np.float32))


def _evenly(count: int) -> F32:
    """Numbers from 0.1 to 1, to the bit as torch has them: each is as many steps, of float32, from
    the nearer end, and rounded once."""
    first = np.float32(0.1)
    step = np.float64((np.float32(1) - first) / np.float32(count - 1))
    places = np.arange(count)
    low, high = np.float64(first) + step * places, 1 - step * (count - 1 - places)
    return np.where(places < count // 2, low, high).astype(np.float32)


def _nearest(values: F32, table: F32) -> NDArray[np.uint8]:
    """The codes of the nearest values of a table in any order; half-way, of the lower one, and of
    equal ones the lowest."""
    ascending, codes = np.unique(table, return_index=True)
    bounds = (ascending[:-1] + ascending[1:]) / 2
    found: NDArray[np.uint8] = codes.astype(np.uint8)[np.searchsorted(bounds, values, side="left")]
    return found

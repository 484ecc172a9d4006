"""FP8, MXFP4 and NVFP4, as compressed-tensors stores them: weights in floats of 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.models.compressed_tensors import METHOD
from penstock.models.spec import DType
from penstock.quant.formats.float_codes import E2M1, e2m1, e4m3
from penstock.quantize.forms.form import Arrays
from penstock.quantize.grid import F32, smallest
from penstock.weights.tensor_file import NUMPY_DTYPES

Bytes = NDArray[np.uint8]
ScalesOf = Literal["tensor", "channel", "block"]
"""What shares a scale in FP8: the matrix, a row, or 128 x 128 of its weights."""

_E4M3_MOST: Final = np.float32(448)
_E2M1_MOST: Final = np.float32(6)
_BLOCK: Final = 128
_MXFP4_GROUP: Final = 32
_NVFP4_GROUP: Final = 16
_E8M0_BIAS: Final = 127
_BOUNDS: Final = np.array(
    [
        # Between each two magnitudes of E2M1; half-way goes to the one with an even mantissa.
        bound if i % 2 == 0 else np.nextafter(np.float32(bound), np.float32(0))
        for i, bound in enumerate((a + b) / 2 for a, b in pairwise(E2M1))
    ],
    np.float32,
)


@dataclass(frozen=True)
class CodedFloats:
    """A matrix of codes, which stand for ``values`` float32 ``[n, k]``, and its tensors."""

    values: F32
    tensors: Mapping[str, NDArray[np.generic]]

    def dequantize(self) -> F32:
        """What the codes stand for."""
        return self.values

    def arrays(self) -> Arrays:
        """The tensors, by what follows the module's name and a dot."""
        return self.tensors


def e4m3_codes(values: F32) -> Bytes:
    """The nearest codes of E4M3, ties to even; the largest where values are larger."""
    kept = np.clip(values, -_E4M3_MOST, _E4M3_MOST)
    codes: Bytes = kept.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return codes


def e2m1_codes(values: F32) -> Bytes:
    """The nearest codes of E2M1, ties to even; the largest where values are larger."""
    magnitudes = np.searchsorted(_BOUNDS, np.abs(values), side="left").astype(np.uint8)
    signs = (np.signbit(values) & (magnitudes > 0)).astype(np.uint8)
    codes: Bytes = magnitudes | signs << np.uint8(3)
    return codes


def pairs(codes: Bytes) -> Bytes:
    """Codes of 4 bits ``[n, k]``, two a byte, the first in the low bits."""
    packed: Bytes = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return packed


def _config(
    form: str,
    weights: Mapping[str, object],
    activations: Mapping[str, object] | None,
    floats: Sequence[str],
) -> dict[str, object]:
    group = {
        "targets": ["Linear"],
        "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights},
        "input_activations": activations,
    }
    return {
        "quant_method": METHOD,
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(floats),
    }


@dataclass(frozen=True)
class Fp8:
    """E4M3. Engines that multiply FP8 round what matrices multiply to it, too, each token by its
    largest value, as the configuration says."""

    scales_of: ScalesOf
    scale_dtype: DType
    """The type of scales."""

    group_size: None = None

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        weights: dict[str, object] = {"num_bits": 8, "strategy": self.scales_of}
        activations: dict[str, object] = {
            "num_bits": 8,
            "type": "float",
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        }
        if self.scales_of == "block":
            weights["block_structure"] = [_BLOCK, _BLOCK]
            activations |= {"strategy": "group", "group_size": _BLOCK}
        return _config("float-quantized", weights, activations, floats)

    def of_joined(self, matrices: Sequence[F32]) -> Fp8:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> CodedFloats:
        """Round to nearest; the largest magnitude under a scale becomes 448."""
        n, k = matrix.shape
        rows, columns = {"tensor": (n, k), "channel": (1, k), "block": (_BLOCK, _BLOCK)}[
            self.scales_of
        ]
        most = _tile_maxima(matrix, rows, columns)
        dtype = NUMPY_DTYPES[self.scale_dtype]
        with np.errstate(over="ignore"):
            stored = np.where(most > 0, most / _E4M3_MOST, np.float32(1)).astype(dtype)
        stored = np.maximum(stored, smallest(dtype))
        scales = stored.astype(np.float32)
        if not np.isfinite(scales).all():
            raise WeightError(
                f"{name} has values up to {most.max():.4g}, whose scale is no {self.scale_dtype}; "
                "take another --method"
            )
        spread = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:n, :k]
        codes = e4m3_codes(matrix / spread)
        if self.scales_of == "tensor":
            stored = stored.reshape(1)
        tensors = {"weight": codes.view(ml_dtypes.float8_e4m3fn), "weight_scale": stored}
        return CodedFloats(e4m3()[codes] * spread, tensors)


def _tile_maxima(matrix: F32, rows: int, columns: int) -> F32:
    """The largest magnitude of each tile ``[rows, columns]``, the last ones smaller."""
    tall = np.maximum.reduceat(np.abs(matrix), np.arange(0, matrix.shape[0], rows), axis=0)
    most: F32 = np.maximum.reduceat(tall, np.arange(0, matrix.shape[1], columns), axis=1)
    return most


@dataclass(frozen=True)
class Mxfp4:
    """E2M1 times a power of two of each 32 columns; the power of two that loses less."""

    group_size: int = _MXFP4_GROUP

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        weights = {"num_bits": 4, "strategy": "group", "group_size": _MXFP4_GROUP}
        return _config("mxfp4-pack-quantized", weights, None, floats)

    def of_joined(self, matrices: Sequence[F32]) -> Mxfp4:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> CodedFloats:
        """The largest magnitude of a group becomes 4 to 8 before it is rounded, and 6 at most, or
        half as much, where that makes the squared error smaller."""
        n, k = matrix.shape
        groups = matrix.reshape(n, -1, _MXFP4_GROUP)
        most = np.abs(groups).max(axis=2)
        _, exponents = np.frexp(np.where(most > 0, most, np.float32(1)))
        low = np.clip(exponents - 3, 1 - _E8M0_BIAS, 252 - _E8M0_BIAS)
        errors, codes = [], []
        for power in (low, low + 1):
            scaled = np.ldexp(groups, -power[..., None])
            own = e2m1_codes(scaled)
            difference = np.ldexp(e2m1()[own] - scaled, power[..., None])
            errors.append(np.square(difference).sum(axis=2))
            codes.append(own)
        higher = errors[1] < errors[0]
        kept = np.where(higher[..., None], codes[1], codes[0])
        powers = low + higher
        values = np.ldexp(e2m1()[kept], powers[..., None]).reshape(n, k)
        tensors = {
            "weight_packed": pairs(kept.reshape(n, k)),
            "weight_scale": (powers + _E8M0_BIAS).astype(np.uint8),
        }
        return CodedFloats(values, tensors)


@dataclass(frozen=True)
class Nvfp4:
    """E2M1 times a scale in E4M3 of each 16 columns, divided by a factor of the matrix, or of those
    that engines multiply as one: these have one factor."""

    largest: float | None = None
    """The largest magnitude that the factor is of; None: the matrix's own."""

    group_size: int = _NVFP4_GROUP

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        weights = {"num_bits": 4, "strategy": "tensor_group", "group_size": _NVFP4_GROUP}
        return _config("nvfp4-pack-quantized", weights, None, floats)

    def of_joined(self, matrices: Sequence[F32]) -> Nvfp4:
        """One factor serves all of them."""
        return replace(self, largest=max(float(np.abs(each).max(initial=0)) for each in matrices))

    def round(self, matrix: F32, name: str) -> CodedFloats:
        """The largest magnitude of the matrix becomes 6 x 448, and that of a group 6, as far as its
        scale can be held."""
        n, k = matrix.shape
        groups = matrix.reshape(n, -1, _NVFP4_GROUP)
        most = np.abs(groups).max(axis=2)
        whole = np.float32(most.max(initial=0) if self.largest is None else self.largest)
        factor = np.float32(1)
        if whole > 0:
            with np.errstate(over="ignore"):
                factor = np.minimum(_E4M3_MOST * _E2M1_MOST / whole, np.finfo(np.float32).max)
        scales = e4m3_codes(most / _E2M1_MOST * factor)
        scales = np.maximum(scales, np.uint8(1))  # above 0, though values are rounded to 0
        of_groups: F32 = (e4m3()[scales] / factor)[..., None]
        codes = e2m1_codes(groups / of_groups)
        tensors = {
            "weight_packed": pairs(codes.reshape(n, k)),
            "weight_scale": scales.view(ml_dtypes.float8_e4m3fn),
            "weight_global_scale": np.array([factor], np.float32),
        }
        return CodedFloats((e2m1()[codes] * of_groups).reshape(n, k), tensors)

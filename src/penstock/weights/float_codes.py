"""Reads matrices in small floating-point types, with exactly the values that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed, Stored
from penstock.models.float_codes import Fp4, Fp8
from penstock.quant import CodebookTensor
from penstock.weights.integer_codes import require_shape, unpacked
from penstock.weights.tensor_file import Tensor, TensorFile

Found = Mapping[str, tuple[TensorFile, Tensor]]

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS: Final = 127
_NOT_A_NUMBER: Final = 255


def read_fp8(packed: Packed, found: Found) -> CodebookTensor:
    """The matrix ``[n, k]``. Raises WeightError where scales cannot be right."""
    form = packed.format
    assert isinstance(form, Fp8)
    codes, scales = form.tensors(packed.name, packed.shape)
    n, k = packed.shape
    rows, columns = form.tile
    return CodebookTensor(
        e4m3(),
        found[codes.name][0].codes(found[codes.name][1].name),
        read_scales(scales, found),
        (rows or max(n, 1), columns or max(k, 1)),
    )


def read_fp4(packed: Packed, found: Found) -> CodebookTensor:
    """The matrix ``[n, k]``. Raises WeightError where scales cannot be right."""
    form = packed.format
    assert isinstance(form, Fp4)
    require_shape(packed.name, packed.shape, found)
    codes, *of_scales = form.tensors(packed.name, packed.shape)
    file, tensor = found[codes.name]
    scales = read_scales(of_scales[0], found)
    if form.factor is not None:
        factor = read_scales(of_scales[1], found)
        with np.errstate(over="ignore"):
            scales = scales / factor if form.divides else scales * factor
        if not np.isfinite(scales).all():
            raise _unusable(of_scales[1], found, "makes scales that are not finite")
    return CodebookTensor(e2m1(), unpacked(file.codes(tensor.name), 4), scales, (1, form.group))


def read_scales(stored: Stored, found: Found) -> NDArray[np.float32]:
    """The scales in float32, of the shape that is asked for.

    Raises WeightError unless they are finite, not negative, and not all of them 0.
    """
    file, tensor = found[stored.name]
    scales = _widened(file, tensor)
    if not np.isfinite(scales).all():
        raise _unusable(stored, found, "has scales that are not finite")
    if scales.min(initial=0) < 0:
        raise _unusable(stored, found, "has negative scales")
    if scales.size and not scales.any():
        raise _unusable(stored, found, "has no scale but 0")
    return scales.reshape(stored.shape)


def _widened(file: TensorFile, tensor: Tensor) -> NDArray[np.float32]:
    if tensor.dtype == "F8_E4M3":
        values: NDArray[np.float32] = e4m3()[file.codes(tensor.name)]
        return values
    if tensor.element is not None:
        floats: NDArray[np.float32] = file.view(tensor.name).astype(np.float32)
        return floats
    exponents = file.codes(tensor.name).astype(np.int32)
    scales: NDArray[np.float32] = np.ldexp(np.float32(1), exponents - _BIAS).astype(np.float32)
    scales[exponents == _NOT_A_NUMBER] = np.nan
    return scales


def e4m3() -> NDArray[np.float32]:
    """The values of all codes of E4M3."""
    codes = np.arange(256, dtype=np.uint8)
    values: NDArray[np.float32] = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


def e2m1() -> NDArray[np.float32]:
    """The values of all codes of E2M1."""
    return np.array([*_E2M1, *(-x for x in _E2M1)], np.float32)


def _unusable(stored: Stored, found: Found, problem: str) -> WeightError:
    file, tensor = found[stored.name]
    return WeightError(
        f"{file.path}: tensor {tensor.name!r} {problem}; download the checkpoint again"
    )

"""Reads matrices in FP8, MXFP4 and NVFP4, with exactly the values that they stand for."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed, Stored
from penstock.models.float_codes import NVFP4_GROUP, Fp8, Mxfp4, Nvfp4
from penstock.quant import CodebookTensor
from penstock.quant.formats.float_codes import e2m1, e4m3
from penstock.weights.integer_codes import require_shape, unpacked
from penstock.weights.rows import Runs, rows_of
from penstock.weights.tensor_file import Found, Tensor, TensorFile

Bytes = NDArray[np.uint8]

_E4M3_MOST: Final = np.float32(448)
_NAN: Final = np.uint8(127)
"""The magnitude of E4M3 that is no number."""
_PIECE: Final = 1 << 18  # codes at a time, so that what looks at them runs in cache
_BIAS: Final = 127
_NOT_A_NUMBER: Final = 255
_MXFP4_LARGEST: Final = 252
"""The largest exponent whose products with all codes float32 holds."""


def read_fp8(packed: Packed, found: Found) -> CodebookTensor:
    """The matrix ``[n, k]``. Raises WeightError where scales cannot be right."""
    form = packed.format
    assert isinstance(form, Fp8)
    codes, scales = form.tensors(packed.name, packed.shape)
    n, k = packed.shape
    rows, columns = form.tile
    file, tensor = found[codes.name]
    return CodebookTensor(
        e4m3(),
        require_numbers(file.codes(tensor.name), f"{file.path}: tensor {tensor.name!r}"),
        read_scales(scales, found),
        (rows or max(n, 1), columns or max(k, 1)),
    )


def read_mxfp4(packed: Packed, found: Found, runs: Runs | None = None) -> CodebookTensor:
    """The rows of each of ``runs`` of the matrix, or of those of a stack one below another; None:
    all. Raises WeightError where scales cannot be right."""
    codes, exponents = read_mxfp4_parts(packed, found, runs)
    columns = packed.columns // exponents.shape[1]
    return CodebookTensor(e2m1(), unpacked(codes, 4), _powers(exponents), (1, columns))


def read_mxfp4_parts(packed: Packed, found: Found, runs: Runs | None) -> tuple[Bytes, Bytes]:
    """Those rows' codes ``[rows, k / 2]`` and exponents ``[rows, k / 32]``, as they are stored.

    Raises WeightError where a scale is no number, or values exceed float32.
    """
    form = packed.format
    assert isinstance(form, Mxfp4)
    if len(packed.shape) == 2:
        require_shape(packed.name, packed.shape, found)
    weight, stored = form.tensors(packed.name, packed.shape)
    file, tensor = found[stored.name]
    exponents = rows_of(file.codes(tensor.name).reshape(packed.rows, -1), runs)
    if exponents.max(initial=0) > _MXFP4_LARGEST:
        wrong = exponents.max() == _NOT_A_NUMBER
        what = "that are not finite" if wrong else "that make values which are not finite"
        raise _unusable(stored, found, f"has scales {what}")
    file, tensor = found[weight.name]
    return rows_of(file.codes(tensor.name).reshape(packed.rows, -1), runs), exponents


def read_nvfp4(packed: Packed, found: Found) -> CodebookTensor:
    """The matrix ``[n, k]``. Raises WeightError where scales cannot be right."""
    form = packed.format
    assert isinstance(form, Nvfp4)
    require_shape(packed.name, packed.shape, found)
    codes, of_groups, of_matrix = form.tensors(packed.name, packed.shape)
    file, tensor = found[codes.name]
    scales = read_scales(of_groups, found)
    factor = read_scales(of_matrix, found)
    with np.errstate(over="ignore"):
        scales = scales / factor if form.divides else scales * factor
    if not np.isfinite(scales).all():
        raise _unusable(of_matrix, found, "makes scales that are not finite")
    return CodebookTensor(e2m1(), unpacked(file.codes(tensor.name), 4), scales, (1, NVFP4_GROUP))


def read_factor(form: Nvfp4, packed: Packed, found: Found) -> np.float32:
    """What all scales of the matrix are multiplied by. Raises WeightError where it cannot be."""
    stored = form.tensors(packed.name, packed.shape)[-1]
    own = read_scales(stored, found).reshape(())
    with np.errstate(over="ignore"):
        factor = np.float32(1) / own if form.divides else own
        if not np.isfinite(factor * _E4M3_MOST):
            raise _unusable(stored, found, "makes scales that are not finite")
    return np.float32(factor)


def read_scales(stored: Stored, found: Found, most: float = 1.0) -> NDArray[np.float32]:
    """The scales in float32, of the shape that is asked for.

    Raises WeightError unless they are finite, as are their products with ``most``, not negative,
    and not all of them 0.
    """
    file, tensor = found[stored.name]
    scales = _widened(file, tensor)
    if not np.isfinite(scales).all():
        raise _unusable(stored, found, "has scales that are not finite")
    if scales.max(initial=0) > np.finfo(np.float32).max / max(float(most), 1.0):
        raise _unusable(stored, found, "has scales that make values which are not finite")
    if scales.min(initial=0) < 0:
        raise _unusable(stored, found, "has negative scales")
    if scales.size and not scales.any():
        raise _unusable(stored, found, "has no scale but 0")
    return scales.reshape(stored.shape)


def require_numbers(codes: Bytes, where: str) -> Bytes:
    """Return ``codes`` of E4M3; raise WeightError if one of them is NaN."""
    flat = codes.reshape(-1)
    scratch = np.empty(_PIECE, np.uint8)
    for first in range(0, flat.size, _PIECE):
        some = flat[first : first + _PIECE]
        if np.bitwise_and(some, _NAN, out=scratch[: some.size]).max() == _NAN:
            raise WeightError(
                f"{where} has codes that are no numbers (NaN); download the checkpoint again"
            )
    return codes


def _widened(file: TensorFile, tensor: Tensor) -> NDArray[np.float32]:
    if tensor.dtype == "F8_E4M3":
        values: NDArray[np.float32] = e4m3()[file.codes(tensor.name)]
        return values
    if tensor.element is not None:
        floats: NDArray[np.float32] = file.view(tensor.name).astype(np.float32)
        return floats
    exponents = file.codes(tensor.name)
    scales = _powers(exponents)
    scales[exponents == _NOT_A_NUMBER] = np.nan
    return scales


def _powers(exponents: Bytes) -> NDArray[np.float32]:
    """The powers of two that E8M0 has; the one that is no number is not finite."""
    with np.errstate(over="ignore"):
        powers: NDArray[np.float32] = np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS)
    return powers


def _unusable(stored: Stored, found: Found, problem: str) -> WeightError:
    file, tensor = found[stored.name]
    return WeightError(
        f"{file.path}: tensor {tensor.name!r} {problem}; download the checkpoint again"
    )

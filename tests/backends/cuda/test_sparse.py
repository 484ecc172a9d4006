"""Products of 2:4 sparse matrices on the device, beside the floats they stand for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda import rounding  # noqa: E402
from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.matrix import Shape  # noqa: E402
from penstock.backends.cuda.sparse_matrix import SparseMatrix  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.backends.reference.numerics import activate  # noqa: E402
from penstock.models.spec import Activation  # noqa: E402
from penstock.quant import GroupScheme, GroupTensor  # noqa: E402

F32 = NDArray[np.float32]
SCHEMES = [GroupScheme(bits, size) for bits in (4, 8) for size in (64, 128, None)]


def drawn(*shape: int, seed: int = 0) -> F32:
    """Numbers that bfloat16 holds."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def matrix_of(
    scheme: GroupScheme, n: int, k: int, device: Any, gated: bool = False,
    x_dtype: Any = torch.bfloat16,
) -> tuple[SparseMatrix, F32]:  # fmt: skip
    """A random matrix of n rows, and the floats that it stands for."""
    rng = np.random.default_rng(n + k)
    places = np.sort(rng.permuted(np.tile(np.arange(4), (n, k // 4, 1)), axis=2)[:, :, :2], axis=2)
    codes = rng.integers(scheme.lowest, scheme.highest + 1, places.shape, np.int8)
    scales = np.exp(drawn(n, scheme.groups(k), seed=3))
    whole = np.zeros((n, k // 4, 4), np.int8)
    np.put_along_axis(whole, places, codes, axis=2)
    floats = GroupTensor(scheme, whole.reshape(n, k), scales, None).dequantize()
    shape = Shape(n // (2 if gated else 1), k, 70, gated)
    matrix = SparseMatrix(shape, scheme, Workspace(device), x_dtype)
    of_rows = (
        torch.from_numpy(each.reshape(n, -1)).to(device)
        for each in (codes, places.astype(np.uint8), scales)
    )
    parts = [(each[: n // 3], each[n // 3 :]) for each in of_rows]
    matrix.fill_kept(n // 3, *(second for _, second in parts))
    matrix.fill_kept(0, *(first for first, _ in parts))
    return matrix, floats


def product(
    matrix: SparseMatrix, x: F32, device: Any, bias: F32 | None = None,
    gated: Activation | None = None, x_dtype: Any = torch.bfloat16,
) -> F32:  # fmt: skip
    """The product of strided x and out, whose surroundings must neither matter nor change."""
    n = matrix.shape.n
    wide_x = torch.full((len(x), x.shape[1] + 16), float("nan"), dtype=x_dtype, device=device)
    wide_x[:, :-16] = torch.from_numpy(x).to(x_dtype)
    wide = torch.full((len(x) + 1, n + 8), 7.0, device=device)
    of_bias = None if bias is None else torch.from_numpy(bias).to(device)
    matrix.product(wide_x[:, :-16], wide[:-1, :n], of_bias, gated)
    assert (wide[-1] == 7).all()
    assert (wide[:, n:] == 7).all()
    return wide[:-1, :n].cpu().numpy()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products(scheme: GroupScheme, x_dtype: Any, device: Any) -> None:
    for n, k, rows in ((35, 96, 1), (70, 300, 3)):
        matrix, w = matrix_of(scheme, n, k, device, x_dtype=x_dtype)
        x, bias = drawn(rows, k), drawn(n, seed=2)
        for of_bias in (None, bias):
            got = product(matrix, x, device, of_bias, x_dtype=x_dtype)
            want = x.astype(np.float64) @ w.T + (0 if of_bias is None else of_bias)
            sizes = np.abs(x).astype(np.float64) @ np.abs(w).T + 1
            np.testing.assert_array_less(np.abs(got - want), sizes * 2.0**-24 * (k + 8))


def test_gates(device: Any) -> None:
    matrix, w = matrix_of(GroupScheme(4, 64), 42, 160, device, gated=True)
    x, bias = drawn(3, 160) / np.float32(64), drawn(42, seed=3)
    gate, up = np.split(x @ w.T + bias, 2, axis=1)
    got = product(matrix, x, device, bias, "silu")
    np.testing.assert_allclose(got, activate(gate, "silu") * up, rtol=2e-4, atol=2e-4)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[2], SCHEMES[4]], ids=str)
def test_rows_keep_to_themselves(
    scheme: GroupScheme, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tiles and splits compute them, however many rows are packed at once."""
    k = 1100
    assert tiles.splits_of(48, k)[0] > 1
    matrix, _ = matrix_of(scheme, 48, k, device)
    x = drawn(40, k)
    x[3, 7] = np.nan
    whole = product(matrix, x, device)
    assert not np.isfinite(whole[3]).any()
    assert np.isfinite(whole[np.arange(40) != 3]).all()
    for rows in (1, 16, 36):
        np.testing.assert_array_equal(product(matrix, x[-rows:], device), whole[-rows:])
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    monkeypatch.setattr(rounding, "SLICE", 5 * k)
    again, _ = matrix_of(scheme, 48, k, device)
    np.testing.assert_array_equal(product(again, x[-17:], device), whole[-17:])


def test_no_rows(device: Any) -> None:
    matrix, _ = matrix_of(GroupScheme(8, None), 35, 96, device)
    assert product(matrix, np.zeros((0, 96), np.float32), device).shape == (0, 35)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bytes(scheme: GroupScheme, device: Any) -> None:
    matrix, _ = matrix_of(scheme, 48, 512, device)
    assert matrix.nbytes == 48 * (512 * (scheme.bits + 2) // 16 + 4 * scheme.groups(512))


def test_groups_that_no_kernel_has_are_refused(device: Any) -> None:
    for scheme in (GroupScheme(4, 32), GroupScheme(4, 64, zero_points=True)):
        with pytest.raises(ValueError, match="no GPU kernel has 2:4 sparse matrices in int4 by"):
            matrix_of(scheme, 16, 96, device)

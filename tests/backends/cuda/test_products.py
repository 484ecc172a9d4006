"""``plan.ops.Linear`` on the device against the reference's numerics."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import torch
from torch import Tensor

from penstock.backends.cuda.kernels import tiles
from penstock.backends.cuda.matrix import Matrix, Shape, make_matrix
from penstock.backends.cuda.workspace import Workspace
from penstock.backends.reference import numerics, products
from penstock.errors import WeightError
from penstock.models.spec import Activation, DType
from penstock.quant import (
    GridScheme,
    GroupScheme,
    QuantScheme,
    quantize,
    quantize_to_grid,
)

F32 = NDArray[np.float32]

SCHEMES: list[QuantScheme] = [
    GridScheme(8),
    GridScheme(4, 32),
    *(
        GroupScheme(bits, size, zeros)
        for bits in (8, 4)
        for size in (32, 64, 128, None)
        for zeros in (False, True)
    ),
]
ACTIVATIONS: list[Activation] = ["silu", "gelu_tanh", "gelu", "relu", "relu2"]


def drawn(*shape: int, seed: int = 0) -> F32:
    """Normal numbers that bfloat16 holds, not centred on 0."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(shape) + 0.25).astype(ml_dtypes.bfloat16)
    return values.astype(np.float32)


def expected(
    x: F32, w: F32, scheme: QuantScheme | None, weight_only: bool, bias: F32 | None,
    gated: Activation | None,
) -> F32:  # fmt: skip
    with np.errstate(invalid="ignore"):
        if scheme is None:
            y: F32 = x @ w.T
        elif isinstance(scheme, GridScheme):
            grid = quantize_to_grid(w, scheme, transformed=not weight_only)
            y = (products.points_on_grid if weight_only else products.grid_product)(x, grid)
        else:
            tensor = quantize(w, scheme)
            y = (products.points_by_group if weight_only else products.int_product)(x, tensor)
        if bias is not None:
            y = y + bias
        if gated is None:
            return y
        gate, up = np.split(y, 2, axis=1)
        return numerics.activate(gate, gated) * up


def matrix_of(
    w: F32, device: Any, scheme: QuantScheme | None, weight_only: bool = False, max_rows: int = 70,
    gated: bool = False, dtype: DType = "bfloat16", deterministic: bool = True,
    x_dtype: torch.dtype = torch.bfloat16,
) -> tuple[Matrix, Workspace]:  # fmt: skip
    n = len(w) // (2 if gated else 1)
    workspace = Workspace(device)
    matrix = make_matrix(
        Shape(n, w.shape[1], max_rows, gated), dtype, scheme, workspace, x_dtype,
        weight_only=weight_only, deterministic=deterministic,
    )  # fmt: skip
    cut = len(w) // 3  # two parts, the second first
    matrix.fill(cut, torch.from_numpy(w[cut:]), "second")
    matrix.fill(0, torch.from_numpy(w[:cut]), "first")
    return matrix, workspace


def product(
    matrix: Matrix, x: F32, device: Any, bias: F32 | None = None, gated: Activation | None = None,
    x_dtype: torch.dtype = torch.bfloat16, out_dtype: torch.dtype = torch.float32,
) -> F32:  # fmt: skip
    """The product of strided x and out, whose surroundings must neither matter nor change."""
    n = matrix.shape.n
    wide_x = torch.full((len(x), x.shape[1] + 24), float("nan"), dtype=x_dtype, device=device)
    wide_x[:, 8:-16] = torch.from_numpy(x).to(x_dtype)
    wide = torch.full((len(x) + 1, n + 8), 7.0, dtype=out_dtype, device=device)
    out = wide[:-1, :n]
    of_bias = None if bias is None else torch.from_numpy(bias).to(device)
    matrix.product(wide_x[:, 8:-16], out, of_bias, gated)
    assert (wide[-1] == 7).all()
    assert (wide[:, n:] == 7).all()
    return out.float().cpu().numpy()


def close(got: F32, want: F32, k: int) -> None:
    """Sums of k products in another order, and exponentials of a GPU."""
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=4e-6 * k**0.5)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("weight_only", [False, True])
@pytest.mark.parametrize("scheme", [s for s in SCHEMES if isinstance(s, GroupScheme)], ids=str)
def test_matrices_that_are_quantized_already(
    scheme: GroupScheme, weight_only: bool, device: Any
) -> None:
    x, w = drawn(3, 160), drawn(9, 160, seed=1)
    tensor = quantize(w, scheme)
    if scheme.zero_points and scheme.bits == 4:  # as checkpoints may have them
        assert tensor.zeros is not None
        tensor.zeros[:, -1] = 8
    matrix, _ = matrix_of(w, device, scheme, weight_only)
    matrix.fill_quantized(0, tensor, "w", lambda array: torch.from_numpy(array.copy()).to(device))
    got = product(matrix, x, device)
    if weight_only:
        close(got, products.points_by_group(x, tensor), 160)
    else:
        np.testing.assert_array_equal(got, products.int_product(x, tensor))
    floats, _ = matrix_of(w, device, None)
    with pytest.raises(ValueError, match=f"w is stored as {scheme}, which no GPU kernel reads"):
        floats.fill_quantized(0, tensor, "w", torch.from_numpy)


@pytest.mark.thinned(13)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 70, 33), (17, 5, 300), (70, 131, 129)])
def test_products_of_integers_are_the_references(
    scheme: QuantScheme, rows: int, n: int, k: int, device: Any
) -> None:
    x, w, bias = drawn(rows, k), drawn(n, k, seed=1), drawn(n, seed=2)
    x[0] = 0
    matrix, workspace = matrix_of(w, device, scheme)
    # Adding one is the same code for any shape.
    for of_bias in (None, bias) if rows < 70 else (bias,):
        got = product(matrix, x, device, of_bias)
        np.testing.assert_array_equal(got, expected(x, w, scheme, False, of_bias, None))
    assert (workspace.counters == 0).all()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("rows", "n", "k"), [(3, 70, 33), (40, 66, 300)])
def test_products_of_weights_alone(
    scheme: QuantScheme, rows: int, n: int, k: int, device: Any
) -> None:
    x, w, bias = drawn(rows, k), drawn(n, k, seed=1), drawn(n, seed=2)
    matrix, _ = matrix_of(w, device, scheme, weight_only=True)
    close(product(matrix, x, device, bias), expected(x, w, scheme, True, bias, None), k)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", [1, 33, 70])
@pytest.mark.parametrize(
    ("dtype", "x_dtype"),
    [
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float32),
        ("float32", torch.float32),
        ("float32", torch.bfloat16),
    ],
)
def test_products_of_floats(
    dtype: DType, x_dtype: torch.dtype, rows: int, deterministic: bool, device: Any
) -> None:
    x, w, bias = drawn(rows, 131), drawn(67, 131, seed=1), drawn(67, seed=2)
    if dtype == "float32":
        w += np.float32(1e-4)  # more than 16 bits hold
    matrix, _ = matrix_of(
        w, device, None, dtype=dtype, deterministic=deterministic, x_dtype=x_dtype
    )
    for of_bias in (None, bias):
        got = product(matrix, x, device, of_bias, x_dtype=x_dtype)
        close(got, expected(x, w, None, False, of_bias, None), 131)


@pytest.mark.slow
@pytest.mark.thinned(13)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("scheme", "weight_only", "deterministic"),
    [
        (None, False, True),
        (None, False, False),
        (GridScheme(4, 32), False, True),
        (GridScheme(8), True, True),
        (GroupScheme(4, 64, True), False, True),
        (GroupScheme(4, 128), True, True),
    ],
    ids=str,
)
def test_gates(
    scheme: QuantScheme | None, weight_only: bool, deterministic: bool, activation: Activation,
    device: Any,
) -> None:  # fmt: skip
    x, w, bias = drawn(18, 150), drawn(140, 150, seed=1), drawn(140, seed=2)
    x *= np.float32(0.1)
    x = numerics.as_bfloat16(x)
    matrix, _ = matrix_of(w, device, scheme, weight_only, gated=True, deterministic=deterministic)
    for of_bias in (None, bias):
        got = product(matrix, x, device, of_bias, activation)
        want = expected(x, w, scheme, weight_only, of_bias, activation)
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)
    rounded = product(matrix, x, device, bias, activation, out_dtype=torch.bfloat16)
    np.testing.assert_array_equal(rounded, numerics.as_bfloat16(got))


@pytest.mark.thinned(23)
@pytest.mark.parametrize(
    ("scheme", "weight_only"),
    [(None, False), *((s, w) for s in SCHEMES[:2] for w in (False, True)), (SCHEMES[-3], True)],
    ids=str,
)
@pytest.mark.parametrize("gated", [False, True])
def test_one_program_and_many_add_splits_alike(
    scheme: QuantScheme | None, weight_only: bool, gated: bool, device: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    k = 1100
    x, w = drawn(5, k), drawn(130, k, seed=1)
    activation: Activation | None = "silu" if gated else None
    assert tiles.splits_of(65, k)[0] > 1
    matrix, workspace = matrix_of(w, device, scheme, weight_only, gated=gated)
    many = product(matrix, x, device, gated=activation)
    assert (workspace.counters == 0).all()
    np.testing.assert_array_equal(product(matrix, x, device, gated=activation), many)
    want = expected(x, w, scheme, weight_only, None, activation)
    np.testing.assert_allclose(many, want, rtol=1e-4, atol=1e-2 if gated else 3e-4)
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    np.testing.assert_array_equal(product(matrix, x, device, gated=activation), many)


@pytest.mark.thinned(11)
@pytest.mark.parametrize(
    ("scheme", "weight_only"),
    [
        (None, False),
        (GridScheme(4, 32), False),
        (GridScheme(4, 32), True),
        (GroupScheme(4, 32), True),
    ],
    ids=str,
)
def test_rows_keep_to_themselves(
    scheme: QuantScheme | None, weight_only: bool, device: Any
) -> None:
    x, w = drawn(70, 300), drawn(70, 300, seed=1)
    matrix, _ = matrix_of(w, device, scheme, weight_only)
    whole = product(matrix, x, device)
    # The interpreter's sums are NumPy's, which depend on the shape of a tile; a GPU's do not.
    sizes = (1, 16, 30, 64, 69) if device.type == "cuda" else (65, 69)
    for rows in sizes:
        np.testing.assert_array_equal(product(matrix, x[-rows:], device), whole[-rows:])
    for value in (np.nan, np.inf):
        x[3, 7] = value
        spoilt = product(matrix, x, device)
        assert not np.isfinite(spoilt[3]).any()
        others = np.arange(70) != 3
        np.testing.assert_array_equal(spoilt[others], whole[others])


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_rows_that_are_not_finite(scheme: QuantScheme, value: float, device: Any) -> None:
    x, w = drawn(3, 70), drawn(9, 70, seed=1)
    x[1, 66] = value
    matrix, _ = matrix_of(w, device, scheme)
    np.testing.assert_array_equal(
        product(matrix, x, device), expected(x, w, scheme, False, None, None)
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_bytes_are_the_schemes_where_nothing_is_padded(scheme: QuantScheme, device: Any) -> None:
    for weight_only in (False, True):
        shape = Shape(96, 512, 1)
        matrix = make_matrix(
            shape, "bfloat16", scheme, Workspace(device), torch.bfloat16, weight_only=weight_only
        )
        whole_zeros = (
            isinstance(scheme, GroupScheme) and scheme.zero_points and not scheme.group_size
        )
        spare = 3 * 96 if whole_zeros else 0  # a row's one zero point has a word to itself
        assert matrix.nbytes == scheme.nbytes(96, 512) + spare
    shape = Shape(96, 512, 1, gated=True)
    floats = make_matrix(shape, "float16", None, Workspace(device), torch.float32)
    assert floats.nbytes == 2 * 96 * 512 * 2


def test_no_rows(device: Any) -> None:
    for scheme in (None, GridScheme(8), GroupScheme(4, 32)):
        for deterministic in (False, True):
            matrix, _ = matrix_of(drawn(9, 70), device, scheme, deterministic=deterministic)
            assert product(matrix, np.zeros((0, 70), np.float32), device).shape == (0, 9)


@pytest.mark.parametrize("scheme", [GridScheme(8), GridScheme(4, 32), GroupScheme(4, 32)], ids=str)
def test_weights_that_are_not_finite_are_refused(scheme: QuantScheme, device: Any) -> None:
    matrix, _ = matrix_of(drawn(9, 70), device, scheme)
    w = torch.ones(9, 70)
    w[8, 69] = float("inf")
    with pytest.raises(WeightError, match=r"layers.3.down has values that are not finite"):
        matrix.fill(0, w, "layers.3.down")


def test_what_does_not_fit_is_refused(device: Any) -> None:
    matrix, _ = matrix_of(drawn(10, 70), device, None, max_rows=4)

    def run(x: Tensor, out: Tensor, bias: Tensor | None = None, gated: Any = None) -> None:
        matrix.product(x, out, bias, gated)

    x = torch.zeros((4, 70), dtype=torch.bfloat16, device=device)
    out = torch.zeros((4, 10), device=device)
    run(x, out)
    with pytest.raises(ValueError, match="do not go with a matrix of n 10, k 70"):
        run(x[:, :69], out)
    with pytest.raises(ValueError, match="at most 4 rows"):
        run(torch.cat([x, x]), torch.cat([out, out]))
    with pytest.raises(ValueError, match="adjacent"):
        run(x.t().contiguous().t(), out)
    with pytest.raises(ValueError, match=r"bias must be float32 \[10\]"):
        run(x, out, torch.zeros(9, device=device))
    with pytest.raises(ValueError, match="gate"):
        run(x, out, None, "silu")

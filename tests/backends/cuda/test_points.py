"""Products with lattice points on the device: decoding, turning, and both together."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends.cuda.ptx import Assembly
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.kernels.lattice_linear import assembly  # noqa: E402
from penstock.backends.cuda.kernels.turn import UNIT, turn_back, turn_rows  # noqa: E402
from penstock.backends.cuda.lattice_tables import SIGNS, SMALL, lattice_tables  # noqa: E402
from penstock.backends.cuda.matrix import Shape, make_matrix  # noqa: E402
from penstock.backends.cuda.point_matrix import PointMatrix, device_turn  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.backends.reference.numerics import activate  # noqa: E402
from penstock.backends.reference.products import lattice_product  # noqa: E402
from penstock.models.spec import Activation  # noqa: E402
from penstock.quant import LatticeMatrix, LatticeScheme  # noqa: E402
from penstock.quant.lattice import every_point, small_points  # noqa: E402
from penstock.quant.scheme import LatticeBits  # noqa: E402
from penstock.quant.turn import Side, Turn  # noqa: E402

F32 = NDArray[np.float32]
EVERY = np.arange(1 << 16)


def words_of_every_code() -> NDArray[np.uint32]:
    tables = lattice_tables().view(np.uint32)
    return tables[EVERY & 255] ^ tables[SIGNS + (EVERY >> 8)]


def components_of(words: NDArray[np.uint32], less: float) -> F32:
    nibbles = words[:, None] >> np.uint32(4) * np.arange(8, dtype=np.uint32) & np.uint32(15)
    return (nibbles.astype(np.float32) / 2 - np.float32(less)).astype(np.float32)


def test_tables_have_the_points_of_all_codes() -> None:
    np.testing.assert_array_equal(components_of(words_of_every_code(), 3.75), every_point())
    small = lattice_tables().view(np.uint32)[SMALL:]
    np.testing.assert_array_equal(components_of(small, 4), small_points())


@pytest.mark.parametrize("moved", [True, False])
def test_assembly_of_components(moved: bool) -> None:
    words = words_of_every_code() if moved else lattice_tables().view(np.uint32)[SMALL:]
    pairs = words.reshape(-1, 2)
    constraints = ",".join(["=r"] * 8 + ["r"] * 2)
    outs = Assembly(assembly(moved), constraints, 2).run(pairs[:, 0].copy(), pairs[:, 1].copy())
    got = np.stack([out.view(ml_dtypes.bfloat16).astype(np.float32) for out in outs], axis=1)
    np.testing.assert_array_equal(got, every_point() if moved else small_points())


def drawn(*shape: int, seed: int = 0) -> F32:
    """Numbers that bfloat16 holds."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def in_place(turned: NDArray[Any], size: int) -> F32:
    """What ``turn_rows`` wrote, in the order of columns; what lies beside must be 0."""
    columns = np.arange(turned.shape[1])
    places = columns // UNIT * UNIT + columns % 8 * (UNIT // 8) + columns % UNIT // 8
    ordered = turned[:, places].astype(np.float32)
    assert (ordered[:, size:] == 0).all()
    return ordered[:, :size]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 7, 40, 44, 344, 576, 1024])
def test_rows_are_turned_as_numpy_turns_them(size: int, dtype: Any, device: Any) -> None:
    turn = Turn(size, 3, "input")
    of_device = device_turn(turn, Workspace(device))
    x = drawn(3, size, seed=size)
    wide = torch.full((3, size + 8), float("nan"), dtype=dtype, device=device)
    wide[:, :size] = torch.from_numpy(x)
    out = torch.full((3, -(-size // UNIT) * UNIT), float("nan"), dtype=dtype, device=device)
    turn_rows(wide[:, :size], of_device, out)
    got = in_place(out.float().cpu().numpy(), size)
    tolerance = 2**-8 if dtype == torch.bfloat16 else 2e-6
    np.testing.assert_allclose(got, turn.forward(x), rtol=tolerance, atol=tolerance / 2)
    one = torch.empty_like(out[:1])
    turn_rows(wide[1:2, :size], of_device, one)
    assert torch.equal(one, out[1:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [7, 40, 344, 576, 1024])
def test_outputs_are_scaled_and_turned_back(size: int, dtype: Any, device: Any) -> None:
    turn = Turn(size, 3, "output")
    of_device = device_turn(turn, Workspace(device))
    x, bias = drawn(3, size + 5, seed=size), drawn(size, seed=1)
    scale = torch.tensor([0.3], device=device)
    given = torch.from_numpy(x).to(device)[:, 5:]
    for of_bias in (None, bias):
        wide = torch.full((3, size + 8), 7.0, dtype=dtype, device=device)
        out = wide[:, :size]
        on_device = None if of_bias is None else torch.from_numpy(of_bias).to(device)
        turn_back(given, of_device, scale, on_device, out)
        want = turn.back(x[:, 5:] * np.float32(0.3)) + (0 if of_bias is None else of_bias)
        tolerance = 2**-8 if dtype == torch.bfloat16 else 2e-6
        got = out.float().cpu().numpy()
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=2e-6)
        assert (wide[:, size:] == 7).all()


def test_matrices_of_one_size_share_their_factors(device: Any) -> None:
    workspace = Workspace(device)
    sides: tuple[Side, Side] = ("input", "output")
    of_input, back = (device_turn(Turn(40, 3, side), workspace) for side in sides)
    other = device_turn(Turn(40, 4, "input"), workspace)
    assert of_input.left is back.left
    assert of_input.right is other.right
    assert not torch.equal(of_input.signs, other.signs)
    assert torch.equal(of_input.right.t(), back.right)


def points(bits: LatticeBits, n: int, k: int, seed: int = 1) -> LatticeMatrix:
    codes = np.random.default_rng(seed).integers(0, 256, (n, -(-k // 8), bits), np.uint8)
    return LatticeMatrix(LatticeScheme(bits, 5), codes, np.float32(0.3 / k**0.5), k)


def matrix_of(
    parts: list[LatticeMatrix], device: Any, gated: bool = False, max_rows: int = 70,
    x_dtype: Any = torch.bfloat16,
) -> PointMatrix:  # fmt: skip
    sizes = tuple(len(part.codes) for part in parts)
    n = sum(sizes) // (2 if gated else 1)
    shape = Shape(n, parts[0].columns, max_rows, gated, parts=sizes)
    matrix = make_matrix(
        shape, "bfloat16", parts[0].scheme, Workspace(device), x_dtype, weight_only=True
    )
    assert isinstance(matrix, PointMatrix)
    for i in reversed(range(len(parts))):
        put = lambda array: torch.from_numpy(array.copy()).to(device)  # noqa: E731
        matrix.fill_quantized(sum(sizes[:i]), parts[i], f"part {i}", put)
    return matrix


def product(
    matrix: PointMatrix, x: F32, device: Any, bias: F32 | None = None,
    gated: Activation | None = None, x_dtype: Any = torch.bfloat16, out_dtype: Any = torch.float32,
) -> F32:  # fmt: skip
    """The product of strided x and out, whose surroundings must neither matter nor change."""
    n = matrix.shape.n
    wide_x = torch.full((len(x), x.shape[1] + 16), float("nan"), dtype=x_dtype, device=device)
    wide_x[:, :-16] = torch.from_numpy(x).to(x_dtype)
    wide = torch.full((len(x) + 1, n + 8), 7.0, dtype=out_dtype, device=device)
    of_bias = None if bias is None else torch.from_numpy(bias).to(device)
    matrix.product(wide_x[:, :-16], wide[:-1, :n], of_bias, gated)
    assert (wide[-1] == 7).all()
    assert (wide[:, n:] == 7).all()
    return wide[:-1, :n].float().cpu().numpy()


def close(got: F32, want: F32, x_dtype: Any) -> None:
    """Turned rows are rounded to x's type; all else is in float32."""
    error = np.square(got - want).mean() / np.square(want).mean()
    assert error < {torch.float32: 1e-12, torch.float16: 1e-7, torch.bfloat16: 8e-6}[x_dtype]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_the_references(bits: LatticeBits, x_dtype: Any, device: Any) -> None:
    """One matrix and three, with columns that no unit divides, a bias, and many rows."""
    for sizes, k, rows in (((40,), 96, 1), ((24, 8, 40), 288, 3)):
        parts = [points(bits, n, k, seed) for seed, n in enumerate(sizes)]
        x, bias = drawn(rows, k), drawn(sum(sizes), seed=2)
        matrix = matrix_of(parts, device, x_dtype=x_dtype)
        want = np.concatenate([lattice_product(x, part) for part in parts], axis=1)
        close(product(matrix, x, device, x_dtype=x_dtype), want, x_dtype)
        close(product(matrix, x, device, bias, x_dtype=x_dtype), want + bias, x_dtype)


@pytest.mark.parametrize("bits", [2, 3])
def test_gates(bits: LatticeBits, device: Any) -> None:
    gate, up = points(bits, 40, 96), points(bits, 40, 96, 2)
    x, bias = drawn(3, 96), drawn(80, seed=3)
    matrix = matrix_of([gate, up], device, gated=True)
    got = product(matrix, x, device, bias, "silu")
    want = activate(lattice_product(x, gate) + bias[:40], "silu")
    close(got, want * (lattice_product(x, up) + bias[40:]), torch.bfloat16)
    rounded = product(matrix, x, device, bias, "silu", out_dtype=torch.bfloat16)
    np.testing.assert_array_equal(rounded, got.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4])
def test_rows_keep_to_themselves(
    bits: LatticeBits, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tiles and splits compute them, and however many are computed at once."""
    k = 1280
    assert tiles.splits_of(48, -(-k // UNIT) * UNIT)[0] > 1
    part = points(bits, 48, k)
    matrix = matrix_of([part], device)
    x = drawn(18, k)
    x[3, 7] = np.nan
    whole = product(matrix, x, device)
    assert not np.isfinite(whole[3]).any()
    others = np.arange(18) != 3
    assert np.isfinite(whole[others]).all()
    for rows in (1, 16):
        np.testing.assert_array_equal(product(matrix, x[-rows:], device), whole[-rows:])
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    np.testing.assert_array_equal(product(matrix, x[-3:], device), whole[-3:])
    monkeypatch.setattr("penstock.backends.cuda.point_matrix._ROWS_AT_ONCE", 7)
    few = matrix_of([part], device)
    np.testing.assert_array_equal(product(few, x, device), whole)


def test_no_rows(device: Any) -> None:
    matrix = matrix_of([points(2, 40, 96)], device)
    assert product(matrix, np.zeros((0, 96), np.float32), device).shape == (0, 40)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_bytes_are_the_schemes(bits: LatticeBits, device: Any) -> None:
    parts = [points(bits, 48, 512), points(bits, 16, 512)]
    matrix = matrix_of(parts, device)
    stored = sum(part.scheme.nbytes(*part.shape) for part in parts)
    assert matrix.nbytes == stored + 2 * 12  # scales lie 16 bytes apart


def test_what_is_no_matrix_by_itself_is_refused(device: Any) -> None:
    matrix = matrix_of([points(2, 40, 96)], device)
    put = torch.from_numpy
    with pytest.raises(ValueError, match=r"w is 8 rows of 96 columns in E8P of 2 bits"):
        matrix.fill_quantized(0, points(2, 40, 96).rows((0, 8)), "w", put)
    with pytest.raises(ValueError, match=r"w is 40 rows .* joins all rows"):
        matrix.fill_quantized(0, points(2, 48, 96).rows((0, 40)), "w", put)
    with pytest.raises(ValueError, match=r"w is 16 rows"):
        matrix.fill_quantized(0, points(2, 16, 96), "w", put)
    with pytest.raises(ValueError, match=r"stored as E8P of 3 bits, and not in E8P of 2 bits"):
        matrix.fill_quantized(0, points(3, 40, 96), "w", put)
    with pytest.raises(ValueError, match=r"nothing rounds to E8P"):
        matrix.fill(0, torch.zeros(40, 96), "w")

"""Products of codebooks of rows and outliers on the device, beside the floats they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.codebook_checkpoints import codebook_checkpoint, codebook_plan
from support.needs import needs_native
from support.tiny_plans import Chunk, step_of, tokens_of

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda import rounding  # noqa: E402
from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.codebook_matrix import CodebookRowsMatrix  # noqa: E402
from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.matrix import Shape  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.reference.numerics import activate  # noqa: E402
from penstock.backends.registry import BACKENDS  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.models.spec import Activation, DType  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402

F32 = NDArray[np.float32]
Bits = Literal[3, 4]

LIMITS = Limits(num_blocks=8, max_tokens=24, max_logit_rows=24, max_sequences=4, threads=1)


def drawn(*shape: int, seed: int = 0) -> F32:
    """Numbers that bfloat16 holds."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True)
class Coded:
    """Rows as checkpoints have them, and the floats that they stand for."""

    codes: NDArray[np.int32]
    values: F32
    ends: NDArray[np.int32]
    columns: NDArray[np.int32]
    outliers: F32
    k: int
    floats: F32


def coded(n: int, k: int, bits: Bits, count: int, seed: int = 1) -> Coded:
    """Random codes; outliers anywhere, more in the first row than are added at once."""
    rng = np.random.default_rng(seed)
    first = np.arange(min(count, 20))
    others = 20 + rng.choice(n * k - 20, count - len(first), replace=False)
    flat = np.concatenate([first, np.sort(others)])
    codes = rng.integers(0, 1 << bits, (n, k), np.uint8)
    stream = (codes[:, :, None] >> np.arange(bits) & 1).reshape(n, -1)
    stream = np.pad(stream, ((0, 0), (0, -k * bits % 32)))
    values = np.sort(drawn(n, 1 << bits, seed=seed), axis=1)
    floats: F32 = np.take_along_axis(values, codes.astype(np.intp), axis=1)
    outliers = 10 * drawn(count, seed=seed + 1)
    floats.reshape(-1)[flat] = outliers
    return Coded(
        np.packbits(stream, axis=1, bitorder="little").view(np.int32),
        values,
        np.searchsorted(flat // k, np.arange(n + 1)).astype(np.int32),
        (flat % k).astype(np.int32),
        outliers,
        k,
        floats,
    )


def put(device: Any) -> Any:
    return lambda array: torch.from_numpy(array).to(device)


def matrix_of(
    parts: list[Coded], bits: Bits, device: Any, gated: bool = False,
    x_dtype: Any = torch.bfloat16, dtype: Any = torch.bfloat16,
) -> CodebookRowsMatrix:  # fmt: skip
    sizes = tuple(len(part.codes) for part in parts)
    shape = Shape(sum(sizes) // (2 if gated else 1), parts[0].k, 70, gated, parts=sizes)
    counts = [len(part.columns) for part in parts]
    matrix = CodebookRowsMatrix(shape, bits, counts, dtype, Workspace(device), x_dtype)
    for i in reversed(range(len(parts))):
        matrix.fill_rows(sum(sizes[:i]), parts[i], f"part {i}", put(device))
    return matrix


def product(
    matrix: CodebookRowsMatrix, x: F32, device: Any, bias: F32 | None = None,
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


def close(got: F32, x: F32, w: F32, bias: F32 | float = 0.0) -> None:
    """Float32 sums of exact products, in whichever order."""
    sums = x.astype(np.float64) @ w.T.astype(np.float64) + bias
    sizes = np.abs(x).astype(np.float64) @ np.abs(w).T + np.abs(bias) + 30 * np.abs(x).max()
    np.testing.assert_array_less(np.abs(got - sums), sizes * 2.0**-24 * (x.shape[1] + 8))


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize(
    ("x_dtype", "dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float32),
    ],
    ids=str,
)
def test_products(bits: Bits, x_dtype: Any, dtype: Any, device: Any) -> None:
    """One matrix and three, with and without outliers, and columns that no tile divides."""
    for sizes, k, counts, rows in (
        ((35,), 96, (0,), 1),
        ((5, 21, 9), 300, (41, 0, 13), 17),
    ):
        parts = [
            coded(n, k, bits, count, seed)
            for seed, (n, count) in enumerate(zip(sizes, counts, strict=True))
        ]
        x, bias = drawn(rows, k), drawn(sum(sizes), seed=2)
        w = np.concatenate([part.floats for part in parts])
        matrix = matrix_of(parts, bits, device, x_dtype=x_dtype, dtype=dtype)
        close(product(matrix, x, device, x_dtype=x_dtype), x, w)
        close(product(matrix, x, device, bias, x_dtype=x_dtype), x, w, bias)


@pytest.mark.parametrize("count", [0, 30])
def test_gates(count: int, device: Any) -> None:
    gate, up = coded(21, 160, 4, count), coded(21, 160, 4, count, 2)
    x, bias = drawn(3, 160) / np.float32(16), drawn(42, seed=3)
    matrix = matrix_of([gate, up], 4, device, gated=True)
    got = product(matrix, x, device, bias, "silu")
    want = activate(x @ gate.floats.T + bias[:21], "silu") * (x @ up.floats.T + bias[21:])
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("bits", [3, 4])
def test_rows_keep_to_themselves(bits: Bits, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever tiles and splits compute them, however many are computed, or packed, at once."""
    k = 1100
    assert tiles.splits_of(48, k)[0] > 1
    part = coded(48, k, bits, 99)
    matrix = matrix_of([part], bits, device)
    x = drawn(40, k)
    x[3, 7] = np.nan
    whole = product(matrix, x, device)
    assert not np.isfinite(whole[3]).any()
    others = np.arange(40) != 3
    assert np.isfinite(whole[others]).all()
    for rows in (1, 16, 36):
        np.testing.assert_array_equal(product(matrix, x[-rows:], device), whole[-rows:])
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    np.testing.assert_array_equal(product(matrix, x[-17:], device), whole[-17:])
    monkeypatch.setattr("penstock.backends.cuda.codebook_matrix._ROWS_AT_ONCE", 16)
    monkeypatch.setattr(rounding, "SLICE", 5 * k)  # rows that are packed at a time
    few = matrix_of([part], bits, device)
    np.testing.assert_array_equal(product(few, x, device), whole)


def test_no_rows(device: Any) -> None:
    matrix = matrix_of([coded(35, 96, 4, 5)], 4, device)
    assert product(matrix, np.zeros((0, 96), np.float32), device).shape == (0, 35)


@pytest.mark.parametrize("bits", [3, 4])
def test_bytes(bits: Bits, device: Any) -> None:
    matrix = matrix_of([coded(48, 512, bits, 40)], bits, device)
    codes, values = 48 * 512 * bits // 8, 48 * 2 * (1 << bits)
    assert matrix.nbytes == codes + values + 4 * 49 + 8 * 40


def test_parts_that_do_not_fit_are_refused(device: Any) -> None:
    matrix = matrix_of([coded(35, 96, 4, 5)], 4, device)
    with pytest.raises(ValueError, match="w has 35 rows of 96 columns and 6 outliers, where 35"):
        matrix.fill_rows(0, coded(35, 96, 4, 6), "w", put(device))
    with pytest.raises(ValueError, match="w has 20 rows"):
        matrix.fill_rows(0, coded(20, 96, 4, 5), "w", put(device))
    with pytest.raises(ValueError, match="1 matrices have so many numbers of outliers"):
        CodebookRowsMatrix(
            Shape(8, 8, 1), 4, (1, 2), torch.bfloat16, Workspace(device), torch.bfloat16
        )


@needs_native  # which checkpoints are made with
@pytest.mark.parametrize(
    ("family", "bits", "dtype", "layers"),
    [
        ("llama", 3, "float32", 1),
        pytest.param("qwen2", 4, "bfloat16", 2, marks=pytest.mark.slow),
    ],
)
def test_a_model_computes_what_the_reference_does(
    family: str, bits: Bits, dtype: DType, layers: int, tmp_path: Path, device: Any
) -> None:
    """And the same bits however a prompt is cut."""
    folder = codebook_checkpoint(tmp_path / "out", bits, family, num_hidden_layers=layers)
    plan = fuse(codebook_plan(folder, dtype))
    assert BACKENDS["cuda"].obstacle(plan) is None
    weights = open_weights(folder, plan.spec, plan.weights, dtype)
    tokens = tokens_of(1, 6)
    step = step_of([Chunk(tokens, 0, 6, [5, 2], rows=range(6))])
    expected = ReferenceExecutor(plan, weights, LIMITS).run(step).logits
    executor = bind(plan, weights, LIMITS, device)
    whole = executor.run(step).logits.copy()
    error = np.square(whole - expected).mean() / np.square(expected).mean()
    assert error < (1e-8 if dtype == "float32" else 1e-3)
    parts = []
    for first, end in ((0, 1), (1, 5), (5, 6)):
        mine = Chunk(tokens, first, end, [6, 3], rows=range(first, end))
        parts.append(executor.run(step_of([mine])).logits.copy())
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    executor.close()

"""Sums of products of columns against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.backends.cpu import native
from penstock.backends.gram import Gram
from penstock.errors import ConfigError
from penstock.models.spec import DType

F32 = NDArray[np.float32]


def rows_of(tokens: int, columns: int, seed: int = 0) -> F32:
    rows: F32 = np.random.default_rng(seed).standard_normal((tokens, columns)).astype(np.float32)
    return rows


def sums_of(dtype: DType, *parts: F32, threads: int = 1) -> F32:
    own = Gram(dtype, threads)
    sums: F32 = np.zeros((parts[0].shape[1],) * 2, np.float32)
    for part in parts:
        own.add(part, sums)
    own.mirror(sums)
    return sums


# Less and more than a block, and than the rows of one product; and no multiples of registers.
SHAPES = [(1, 1), (1, 40), (37, 100), (33, 256), (70, 300), (2100, 30), (64, 777)]


@pytest.mark.parametrize(("tokens", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_are_those_of_all_pairs(tokens: int, columns: int, dtype: DType) -> None:
    rows, more = rows_of(tokens, columns), rows_of(5, columns, seed=1)
    sums = sums_of(dtype, rows, more)
    both = np.concatenate([rows, more])
    if dtype == "bfloat16":
        both = both.astype(ml_dtypes.bfloat16)
    exact = both.astype(np.float64)
    assert (np.abs(sums - exact.T @ exact) <= 1e-5 * (np.abs(exact).T @ np.abs(exact))).all()
    assert np.array_equal(sums, sums.T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_change_no_bit(dtype: DType) -> None:
    rows = rows_of(300, 600)
    one = sums_of(dtype, rows)
    for threads in (2, 3):
        assert np.array_equal(sums_of(dtype, rows, threads=threads), one)


def test_rows_may_lie_apart_and_there_may_be_none() -> None:
    wide = rows_of(20, 64)
    part = wide[:, 8:48]
    assert np.array_equal(sums_of("float32", part), sums_of("float32", part.copy()))
    assert not sums_of("float32", wide[:0]).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scratch_memory_of_earlier_rows_changes_nothing(dtype: DType) -> None:
    """Rows of an odd number leave half of a pair of bfloat16 in what larger rows have filled."""
    own = Gram(dtype, 2)
    own.add(np.full((2100, 300), np.nan, np.float32), np.zeros((300, 300), np.float32))
    for tokens, columns in [(1, 3), (7, 17), (33, 255), (2047, 31), (2049, 33)]:
        rows = rows_of(tokens, columns)
        sums: F32 = np.zeros((columns, columns), np.float32)
        own.add(rows, sums)
        own.mirror(sums)
        assert np.array_equal(sums, sums_of(dtype, rows)), (tokens, columns)


def test_there_may_be_more_threads_than_columns() -> None:
    for tokens, columns in [(1, 1), (5, 3), (20, 300)]:
        rows = rows_of(tokens, columns)
        assert np.array_equal(sums_of("float32", rows, threads=7), sums_of("float32", rows))


def test_what_is_not_finite_is_seen_on_the_diagonal() -> None:
    rows = rows_of(10, 30)
    rows[3, 7] = np.nan
    assert np.isnan(np.diagonal(sums_of("bfloat16", rows))[7])


def test_what_does_not_fit_is_refused() -> None:
    own = native.load().Gram(1, "float32")
    with pytest.raises(ValueError, match="pairs of columns"):
        own.add(rows_of(2, 4), np.zeros((5, 5), np.float32))
    with pytest.raises(ValueError, match="neighbours"):
        own.add(rows_of(4, 3).T, np.zeros((4, 4), np.float32))


def test_numpy_sums_where_there_is_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ConfigError("none was built")

    monkeypatch.setattr(native, "load", missing)
    rows = rows_of(50, 300)
    assert np.array_equal(sums_of("bfloat16", rows), rows.T @ rows)

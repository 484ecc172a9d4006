"""Hidden states into one vector: which rows count, in what order, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import RequestError
from penstock.pooling.params import PoolingParams
from penstock.pooling.pooler import EMBEDDING_DTYPE, Pooler

ROWS = np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)


def pooled(params: PoolingParams, rows: NDArray[Any] = ROWS, cuts: tuple[int, ...] = ()) -> Any:
    pooler = Pooler(params, len(rows))
    for start, end in itertools.pairwise((0, *cuts, len(rows))):
        if params.wants_all_rows:
            pooler.take(start, rows[start:end])
        elif end == len(rows):
            pooler.take(end - 1, rows[end - 1 :])
    return np.frombuffer(pooler.vector(), EMBEDDING_DTYPE)


def test_last_is_the_last_row_at_length_one() -> None:
    got = pooled(PoolingParams())
    np.testing.assert_allclose(got, ROWS[-1] / np.linalg.norm(ROWS[-1]), rtol=1e-6)
    assert got.dtype == np.float32
    raw = pooled(PoolingParams(normalize=False))
    np.testing.assert_array_equal(raw, ROWS[-1])


def test_mean_is_the_mean_of_all_rows() -> None:
    got = pooled(PoolingParams(pooling="mean", normalize=False))
    np.testing.assert_allclose(got, ROWS.astype(np.float64).mean(axis=0), rtol=1e-6)


@given(cuts=st.sets(st.integers(1, 8)), seed=st.integers(0, 99))
def test_the_mean_is_bitwise_the_same_however_the_rows_come(cuts: set[int], seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((9, 5)).astype(ml_dtypes.bfloat16)
    mean = PoolingParams(pooling="mean")
    np.testing.assert_array_equal(pooled(mean, rows, tuple(sorted(cuts))), pooled(mean, rows))


def test_rows_that_come_twice_count_once() -> None:
    pooler = Pooler(PoolingParams(pooling="mean"), 9)
    for start, end in ((0, 4), (2, 6), (0, 3), (5, 9), (8, 9)):
        pooler.take(start, ROWS[start:end])
    got = np.frombuffer(pooler.vector(), EMBEDDING_DTYPE)
    np.testing.assert_array_equal(got, pooled(PoolingParams(pooling="mean")))


def test_dimensions_keep_the_first_and_normalize_what_is_left() -> None:
    got = pooled(PoolingParams(dimensions=4))
    np.testing.assert_allclose(got, ROWS[-1, :4] / np.linalg.norm(ROWS[-1, :4]), rtol=1e-6)
    raw = pooled(PoolingParams(dimensions=4, normalize=False))
    np.testing.assert_array_equal(raw, ROWS[-1, :4])


def test_zeros_stay_zeros() -> None:
    np.testing.assert_array_equal(pooled(PoolingParams(), np.zeros_like(ROWS)), np.zeros(6))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    rows = ROWS.copy()
    rows[3, 2] = bad
    with pytest.raises(RequestError, match="NaN or infinite"):
        pooled(PoolingParams(pooling="mean"), rows)


def test_missing_rows_are_a_defect() -> None:
    pooler = Pooler(PoolingParams(pooling="mean"), 9)
    pooler.take(0, ROWS[:4])
    with pytest.raises(ValueError, match="rows from position 4"):
        pooler.vector()
    with pytest.raises(ValueError, match="rows from position 4 to 5"):
        pooler.take(6, ROWS[6:])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": 2.0}, "dimensions"),
        ({"dimensions": 7}, "dimensions"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        PoolingParams(**options).validate(hidden_size=6)
    assert error.value.param == param

"""The search for nearest points, against a look at all of them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.quant.lattice import points_of, small_points
from penstock.quantize.nearest import nearest_codes, nearest_small

EVERY = points_of(np.arange(1 << 16, dtype=np.uint16)).astype(np.float64)


def least(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.array([np.square(points - row).sum(axis=1).min() for row in x])


@pytest.mark.parametrize("size", [0.1, 0.5, 1.0, 2.0, 10.0])
def test_no_point_is_nearer(size: float) -> None:
    x = (np.random.default_rng(7).normal(size=(60, 8)) * size).astype(np.float32)
    found = np.square(points_of(nearest_codes(x)) - x.astype(np.float64)).sum(axis=1)
    assert np.allclose(found, least(x, EVERY), rtol=1e-5, atol=1e-5)
    found = np.square(small_points()[nearest_small(x)] - x.astype(np.float64)).sum(axis=1)
    assert np.allclose(found, least(x, small_points().astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_every_point_is_its_own_nearest() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(nearest_codes(points_of(codes)), codes)
    small = np.arange(256, dtype=np.uint8)
    assert np.array_equal(nearest_small(small_points()), small)


def test_normal_weights_lose_what_the_paper_says() -> None:
    """About 0.09 of their squares at 2 bits, where the best four values for single weights lose
    0.118 (Max, Quantizing for Minimum Distortion, 1960)."""
    x = np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32)
    scaled = x * np.float32(1.03)
    error = np.square(points_of(nearest_codes(scaled)) / np.float32(1.03) - x).mean()
    assert 0.088 < error < 0.095


def test_the_rows_of_a_chunk_do_not_matter() -> None:
    x = np.random.default_rng(1).normal(size=(2500, 8)).astype(np.float32)
    codes = nearest_codes(x)
    assert np.array_equal(nearest_codes(x[1000:1100]), codes[1000:1100])

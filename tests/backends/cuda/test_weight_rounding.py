"""Rounding on the device against NumPy's, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="torch is not installed")

import torch

from penstock.backends.cuda import rounding
from penstock.errors import WeightError
from penstock.quant import GridScheme, GroupScheme, quantize, quantize_to_grid

F32 = NDArray[np.float32]

GROUPS = [
    GroupScheme(bits, size, zeros)
    for bits in (8, 4)
    for size in (32, 64, 128, None)
    for zeros in (False, True)
]


def matrices() -> Iterator[F32]:
    """Random ones, and ones whose quotients are ties, subnormal, extreme or of one sign."""
    rng = np.random.default_rng(1)
    for n, k in ((1, 1), (3, 31), (5, 300), (7, 129)):
        yield rng.standard_normal((n, k)).astype(np.float32)
    ties = rng.integers(-254, 255, (6, 97)).astype(np.float32) / 2
    ties[:, 0] = 127
    yield ties
    mixed = rng.standard_normal((8, 200)).astype(np.float32)
    mixed[0] = 0
    mixed[1, 32:64] = 0
    mixed[2] = np.abs(mixed[2])
    mixed[3] = -np.abs(mixed[3])
    mixed[4] *= np.float32(1e-39)
    mixed[5] *= np.float32(1e38)
    mixed[6] = np.float32(-0.0)
    mixed[7, 1:] = 0
    yield mixed


def same(device_array: Any, expected: NDArray[Any]) -> None:
    np.testing.assert_array_equal(device_array.cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bits", [8, 4])
def test_grid(bits: Any, dtype: str, device: Any) -> None:
    scheme = GridScheme(bits, 32)
    for matrix in matrices():
        rounded = torch.from_numpy(matrix).to(getattr(torch, dtype))
        for transformed in (False, True):
            codes, windows, scales, ok = rounding.round_to_grid(
                rounded.to(device), scheme, transformed
            )
            try:
                want = quantize_to_grid(rounded.float().numpy(), scheme, transformed=transformed)
            except WeightError:  # a value is not finite, or a sum of those of a block
                assert not bool(ok)
                continue
            assert bool(ok)
            same(codes, want.codes)
            same(windows, want.windows)
            same(scales, want.scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scheme", GROUPS, ids=str)
def test_groups(scheme: GroupScheme, dtype: str, device: Any) -> None:
    for matrix in matrices():
        rounded = torch.from_numpy(matrix).to(getattr(torch, dtype))
        if not torch.isfinite(rounded).all():
            continue
        codes, scales, zeros, ok = rounding.round_to_groups(rounded.to(device), scheme)
        try:
            want = quantize(rounded.float().numpy(), scheme)
        except WeightError:  # a span beyond the greatest float32
            assert not bool(ok)
            continue
        assert bool(ok)
        same(codes, want.codes)
        same(scales, want.scales)
        assert (zeros is None) == (want.zeros is None)
        if zeros is not None and want.zeros is not None:
            same(zeros, want.zeros)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", [GridScheme(8), GridScheme(4, 32), *GROUPS], ids=str)
def test_what_is_not_finite_is_noticed(
    scheme: GridScheme | GroupScheme, value: float, device: Any
) -> None:
    matrix = torch.ones((3, 70), device=device)
    matrix[1, 69] = value
    if isinstance(scheme, GridScheme):
        assert not rounding.round_to_grid(matrix, scheme, value > 0)[3]
    else:
        assert not rounding.round_to_groups(matrix, scheme)[3]


def test_slices_are_bounded_and_cover_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "SLICE", 100)
    assert [(s.start, s.stop) for s in rounding.slices(7, 30)] == [(0, 3), (3, 6), (6, 7)]
    assert [(s.start, s.stop) for s in rounding.slices(2, 1000)] == [(0, 1), (1, 2)]
    assert not list(rounding.slices(0, 5))

"""Factors of rows, and sums of a token's experts, beside NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels.expert_rows import combine_experts, scale_rows  # noqa: E402
from penstock.backends.reference import experts, numerics  # noqa: E402


def draw(rows: int, cols: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed + cols)
    return (2 * rng.standard_normal((rows, cols))).astype(np.float32)


def wide(x: Any, device: Any, dtype: Any = torch.float32) -> Any:
    """Rows further apart than they are long, as in the arena."""
    array = torch.full((len(x), x.shape[1] + 5), float("nan"), dtype=dtype, device=device)
    array[:, : x.shape[1]] = torch.from_numpy(x).to(dtype)
    return array[:, : x.shape[1]]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("cols", [1, 72, 1500])
def test_scale_rows(cols: int, each: bool, times: int, device: Any) -> None:
    by = draw(7, times, 1)
    x = numerics.as_bfloat16(draw(7 * (times if each else 1), cols))
    for sigmoid in (False, True):
        factors = numerics.sigmoid(by) if sigmoid else by
        expected = experts.scale_rows(x, factors)
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.empty((7 * times, cols), device=device)
            scale_rows(wide(x, device, dtype), wide(by, device), out, sigmoid)
            got = out.cpu().numpy()
            tolerance = 1e-6 if sigmoid else 0
            np.testing.assert_allclose(got, expected, rtol=tolerance)
        rounded = wide(expected, device, torch.bfloat16)
        scale_rows(wide(x, device), wide(by, device), rounded, sigmoid)
        np.testing.assert_array_equal(rounded.float().cpu().numpy(), numerics.as_bfloat16(got))
        alone = torch.empty((times, cols), device=device)
        some = x[2 * times : 3 * times] if each else x[2:3]
        scale_rows(wide(some, device), wide(by[2:3], device), alone, sigmoid)
        np.testing.assert_array_equal(alone.cpu().numpy(), got[2 * times : 3 * times])
        if len(x) == 7 * times:
            same = wide(x, device)
            scale_rows(same, wide(by, device), same, sigmoid)
            np.testing.assert_array_equal(same.cpu().numpy(), got)
    nothing = torch.empty((0, cols), device=device)
    scale_rows(nothing, torch.empty((0, times), device=device), nothing, False)


@pytest.mark.parametrize("times", [1, 2, 9])
@pytest.mark.parametrize("cols", [1, 72, 1500])
def test_combine_experts(cols: int, times: int, device: Any) -> None:
    x, shares = draw(7 * times, cols), draw(7, times, 1)
    for by in (shares, None):
        out = wide(draw(7, cols), device)
        combine_experts(wide(x, device), None if by is None else wide(by, device), out)
        np.testing.assert_array_equal(out.cpu().numpy(), experts.combine(x, times, by))
    nothing = torch.empty((0, cols), device=device)
    combine_experts(nothing, None, nothing)

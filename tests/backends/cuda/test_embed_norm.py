"""Embedding lookup, and addition with RMS norm, beside their definitions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels.embed import embed  # noqa: E402
from penstock.backends.cuda.kernels.norm import add_norm  # noqa: E402
from penstock.backends.reference.numerics import as_bfloat16, rms_norm  # noqa: E402


def strided(rows: int, cols: int, dtype: Any, device: Any) -> Any:
    """Rows further apart than they are long, as in the arena, filled with NaN."""
    return torch.full((rows, cols + 5), float("nan"), dtype=dtype, device=device)[:, :cols]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("cols", [1, 72, 1024, 1500])
def test_embed(dtype: Any, cols: int, device: Any) -> None:
    table = torch.randn(11, cols, generator=torch.Generator().manual_seed(cols)).to(dtype)
    tokens = torch.tensor([10, 0, 3, 3, 7], dtype=torch.int32)
    out = strided(5, cols, torch.float32, device)
    embed(tokens.to(device), table.to(device), out)
    assert torch.equal(out.cpu(), table[tokens.long()].float())


@pytest.mark.parametrize("out_type", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("with_delta", [True, False])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 72), (2, 1025)])
def test_add_norm(rows: int, cols: int, with_delta: bool, out_type: Any, device: Any) -> None:
    rng = np.random.default_rng(cols)
    x, delta = (rng.standard_normal((2, rows, cols)) * 3).astype(np.float32)
    weight = rng.standard_normal(cols).astype(np.float32)
    residual = strided(rows, cols, torch.float32, device)
    residual.copy_(torch.from_numpy(x))
    out = strided(rows, cols, out_type, device)
    add_norm(
        residual,
        torch.from_numpy(delta).to(device) if with_delta else None,
        torch.from_numpy(weight).to(device),
        out,
        1e-5,
    )
    summed = x + delta if with_delta else x
    np.testing.assert_array_equal(residual.cpu().numpy(), summed)
    expected = rms_norm(summed, weight, 1e-5)
    got = out.float().cpu().numpy()
    if out_type is torch.float32:
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)
    else:
        np.testing.assert_allclose(got, as_bfloat16(expected), rtol=2**-7)
        assert np.mean(got == as_bfloat16(expected)) > 0.95  # the rest lie on a border


def test_a_row_is_normed_alone(device: Any) -> None:
    x = torch.randn(7, 200, generator=torch.Generator().manual_seed(0)).to(device)
    weight = torch.ones(200, device=device)
    together, alone = torch.empty_like(x), torch.empty_like(x)
    add_norm(x.clone(), None, weight, together, 1e-6)
    for i in range(7):
        add_norm(x[i : i + 1].clone(), None, weight, alone[i : i + 1], 1e-6)
    assert torch.equal(together, alone)


def test_no_rows_and_not_a_number(device: Any) -> None:
    weight = torch.ones(8, device=device)
    nothing = torch.empty(0, 8, device=device)
    add_norm(nothing, None, weight, nothing, 1e-6)
    x = torch.ones(2, 8, device=device)
    x[0, 3] = float("nan")
    out = torch.empty_like(x)
    add_norm(x, None, weight, out, 1e-6)
    assert out[0].isnan().all()
    assert torch.allclose(out[1], torch.ones(8, device=device))

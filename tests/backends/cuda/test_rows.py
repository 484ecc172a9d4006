"""Selecting rows, the largest of each, and copies of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels.rows import Argmax, copy_blocks, select_rows  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [1, 72, 1030])
def test_select_rows(cols: int, dtype: Any, device: Any) -> None:
    x = torch.randn(9, cols, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    rows = torch.tensor([8, 0, 0, 5], dtype=torch.int32, device=device)
    wide = torch.zeros(4, cols + 3, dtype=dtype, device=device)
    select_rows(x, rows, wide[:, :cols])
    assert torch.equal(wide[:, :cols], x[rows.long()])
    assert not wide[:, cols:].any()
    select_rows(x, rows[:0], wide[:0, :cols])


def largest(rows: np.ndarray, device: Any) -> list[int]:
    argmax = Argmax(len(rows) + 2, rows.shape[1], device)
    out = torch.full((len(rows), 1), -1, dtype=torch.int32, device=device)
    argmax.run(torch.from_numpy(rows).to(device), out)
    winners = argmax.winners[: len(rows)].cpu().numpy()
    assert winners[:, 0].tolist() == out[:, 0].tolist()
    peaks = np.ascontiguousarray(winners[:, 1]).view(np.float32)
    np.testing.assert_array_equal(peaks, rows[np.arange(len(rows)), winners[:, 0]])
    return out[:, 0].tolist()


@pytest.mark.parametrize("cols", [1, 2, 211, 2048, 2049, 6200])
def test_argmax(cols: int, device: Any) -> None:
    rng = np.random.default_rng(cols)
    rows = rng.standard_normal((4, cols)).astype(np.float32)
    rows[1] = np.round(rows[1])  # many ties
    rows[2] -= 100
    rows[3] = 0
    rows[3, cols // 2] = -0.0
    assert largest(rows, device) == rows.argmax(axis=1).tolist()


def test_argmax_of_what_is_not_finite(device: Any) -> None:
    rows = np.zeros((6, 4100), np.float32)
    rows[0, [4000, 4050]] = np.nan
    rows[0, 7] = np.inf
    rows[1, 3000] = -np.nan
    rows[2] = -np.inf
    rows[3, [2500, 4099]] = np.inf
    rows[4] = -1
    rows[4, [100, 3000]] = 0.0, -0.0
    rows[5] = -1
    rows[5, [100, 3000]] = -0.0, 0.0
    assert largest(rows, device) == [4000, 3000, 0, 2500, 100, 100]
    Argmax(1, 5, device).run(torch.empty(0, 5), torch.empty(0, 1, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_blocks_are_copied_in_order(dtype: Any, device: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    data = torch.randint(-100, 100, (6, 2, 32, 20), generator=generator).to(device, dtype)
    expected = data.clone()
    pairs = [(4, 5), (5, 0), (1, 4)]
    for source, target in pairs:
        expected[target] = expected[source]
    copy_blocks(torch.tensor(pairs, dtype=torch.int32, device=device), data)
    assert torch.equal(data, expected)
    copy_blocks(torch.empty(0, 2, dtype=torch.int32, device=device), data)
    assert torch.equal(data, expected)

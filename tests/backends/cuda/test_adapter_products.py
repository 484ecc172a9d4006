"""The two kernels of an addition, by themselves: ranks, splits of k, and both heights of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from numpy.typing import NDArray  # noqa: E402

from penstock.backends.cuda.adapter_rows import tiles_of  # noqa: E402
from penstock.backends.cuda.kernels.adapters import (  # noqa: E402
    MOST_SPLIT,
    DownSlots,
    Tiles,
    UpSlots,
    adapter_down,
    adapter_up,
    padded_columns,
    tile_height,
    up_columns,
    up_room,
)


@dataclass
class Case:
    """Random adapters of one product with ``parts``, whose ranks differ: 0 where there is none."""

    slots: int
    ranks: NDArray[np.int32]
    scales: NDArray[np.float32]
    downs: list[list[Any]]
    ups: list[list[Any]]
    down: DownSlots
    up: UpSlots

    @classmethod
    def draw(
        cls, k: int, widths: list[int], most: int, ranks: list[list[int]], dtype: Any, device: Any
    ) -> Case:
        """What lies behind a rank is NaN wherever kernels may not read it."""
        random = torch.Generator().manual_seed(k + most)
        slots, parts = len(ranks), len(widths)
        a = torch.full((slots, parts, most, padded_columns(k)), torch.nan)
        a[..., k:] = 0
        b = torch.zeros(slots, sum(widths), up_room(most))
        b[..., most:] = 0
        downs: list[list[Any]] = []
        ups: list[list[Any]] = []
        for s, own in enumerate(ranks):
            downs.append([])
            ups.append([])
            first = 0
            for i, (n, rank) in enumerate(zip(widths, own, strict=True)):
                x = torch.randn(rank, k, generator=random).to(dtype)
                y = torch.randn(n, rank, generator=random).to(dtype)
                a[s, i, :rank, :k] = x
                b[s, first : first + n, :rank] = y
                first += n
                downs[-1].append(x.double())
                ups[-1].append(y.double())
        numbers = np.array(ranks, np.int32)
        scales = np.linspace(0.5, 2, numbers.size, dtype=np.float32).reshape(numbers.shape)
        return cls(
            slots,
            numbers,
            scales,
            downs,
            ups,
            DownSlots(
                a.to(dtype).to(device),
                torch.from_numpy(numbers).to(device),
                torch.from_numpy(scales).to(device),
                k,
            ),
            UpSlots(
                b.to(dtype).to(device),
                torch.tensor(up_columns(widths), dtype=torch.int32, device=device),
                0,
            ),
        )

    def added(self, x: Any, out: Any, slots: NDArray[np.int32]) -> Any:
        """What the kernels make of ``out``, copied; ``slots`` of each row."""
        device = x.device
        tiles, order = (
            torch.from_numpy(each).to(device) for each in tiles_of(slots, tile_height(len(x)))
        )
        rows = Tiles(tiles, order)
        _, parts, rank, _ = self.down.weights.shape
        splits = 1 if len(x) > MOST_SPLIT else self.down.splits[0]
        sums = torch.full((splits, len(x), parts * rank), torch.nan, device=device)
        out = out.clone()
        adapter_down(x, self.down, rows, sums)
        adapter_up(sums, self.down, self.up, rows, out)
        return out

    def expected(self, x: Any, out: Any, slots: NDArray[np.int32]) -> Any:
        """The same in float64, row by row."""
        result = out.double().cpu()
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                adds = [
                    float(scale) * (up @ (down @ x[row].double().cpu()))
                    for scale, down, up in zip(
                        self.scales[slot], self.downs[slot], self.ups[slot], strict=True
                    )
                ]
                result[row] += torch.cat(adds)
        return result


def rows_of(count: int, k: int, n: int, dtype: Any, device: Any) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(count)
    x = torch.randn(count, k, generator=random) / k**0.5
    return x.to(dtype).to(device), torch.randn(count, n, generator=random).to(device)


@pytest.mark.parametrize(
    ("k", "widths", "most", "ranks", "dtypes"),
    [
        (72, [96, 32, 32], 20, [[20, 1, 17], [0, 5, 0], [3, 20, 16]], "float32 float32"),
        (200, [70], 256, [[256], [255], [130], [64]], "bfloat16 bfloat16"),
        (1100, [40, 24], 1, [[1, 1], [1, 0]], "float32 float16"),
        (2100, [130], 40, [[40], [33]], "bfloat16 float32"),
    ],
)
def test_additions(
    k: int, widths: list[int], most: int, ranks: list[list[int]], dtypes: str, device: Any
) -> None:
    """Ranks from 1 to 256, types of weights and of x, splits of k: within float32's rounding."""
    kept, read = (getattr(torch, name) for name in dtypes.split())
    case = Case.draw(k, widths, most, ranks, kept, device)
    assert (case.down.splits[0] > 1) == (k > 1000)
    slots = np.array([0, 1, -1, len(ranks) - 1, 0, 0, 1], np.int32)
    x, out = rows_of(len(slots), k, sum(widths), read, device)
    got, expected = case.added(x, out, slots), case.expected(x, out, slots)
    assert torch.isfinite(got).all()
    assert (got.cpu() - expected).abs().max() < 2e-5 * expected.abs().max()
    assert torch.equal(got[2], out[2])
    for row, slot in enumerate(slots):  # alone, in another place, and in other company
        alone = case.added(x[row : row + 1], out[row : row + 1], slots[row : row + 1])
        assert torch.equal(alone[0], got[row]), (row, slot)


@pytest.mark.slow
def test_rows_have_their_bits_in_large_steps(device: Any) -> None:
    """Where tiles are higher and one program adds all splits."""
    case = Case.draw(1100, [40, 24], 20, [[20, 3], [7, 0], [1, 12]], torch.bfloat16, device)
    count = MOST_SPLIT + 70
    slots = np.random.default_rng(0).integers(-1, 3, count).astype(np.int32)
    x, out = rows_of(count, 1100, 64, torch.bfloat16, device)
    large = case.added(x, out, slots)
    expected = case.expected(x, out, slots)
    assert (large.cpu() - expected).abs().max() < 2e-5 * expected.abs().max()
    few = slice(100, 140)
    assert torch.equal(case.added(x[few], out[few], slots[few]), large[few])

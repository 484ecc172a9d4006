"""Rows looked up in tables in groups on the device, beside their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels.embed_groups import embed_groups  # noqa: E402
from penstock.backends.cuda.matrix import GroupMatrix, Shape  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.quant import GroupScheme, quantize  # noqa: E402


@pytest.mark.parametrize("weight_only", [True, False])
@pytest.mark.parametrize(
    "scheme",
    [
        GroupScheme(8, None, zero_points=True),
        GroupScheme(8, 128),
        GroupScheme(4, 32, zero_points=True),
        GroupScheme(4, None),
    ],
    ids=str,
)
def test_rows_are_the_values_that_codes_stand_for(
    scheme: GroupScheme, weight_only: bool, device: Any
) -> None:
    rows, columns = 29, 600
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32) + 0.3
    tensor = quantize(values, scheme)
    shape = Shape(rows, columns, max_rows=1)
    table = GroupMatrix(shape, scheme, Workspace(device), torch.float32, weight_only)
    table.fill_quantized(0, tensor, "embed", lambda x: torch.from_numpy(x.copy()).to(device))
    ids = torch.tensor([28, 0, 7, 7, 13], dtype=torch.int32, device=device)
    wide = torch.full((5, columns + 3), 7.0, device=device)
    embed_groups(ids, table.weights, wide[:, :-3])
    want = tensor.dequantize()[ids.cpu().numpy()]
    np.testing.assert_array_equal(wide[:, :-3].cpu().numpy(), want)
    assert (wide[:, -3:] == 7).all()

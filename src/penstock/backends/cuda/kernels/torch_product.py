"""Products by torch, whose epilogue is a kernel of ours."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.cuda.kernels.launch import finish_sums
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.models.spec import Gating


def torch_scratch(max_rows: int, weight_rows: int) -> int:
    """Return the most bytes of the workspace that :func:`torch_product` carves."""
    return carved_bytes(((max_rows, weight_rows), torch.float32))


def torch_product(
    w: Tensor,
    x: Tensor,
    out: Tensor,
    bias: Tensor | None,
    gated: Gating | None,
    workspace: Workspace,
) -> None:
    """Run :func:`product` for w ``[weight_rows, k]`` of x's type, multiplied by torch."""
    if len(x) == 0:
        return
    plain = bias is None and gated is None
    if plain and out.dtype == torch.float32:
        _multiply(x, w, out)
        return
    (sums,) = workspace.carve(((len(x), len(w)), torch.float32))
    _multiply(x, w, sums)
    finish_sums(sums, bias, gated, out)


def _multiply(x: Tensor, w: Tensor, sums: Tensor) -> None:
    """Compute ``sums = x @ w.T`` in float32, which torch does for 16 bits on GPUs alone."""
    if x.dtype == torch.float32:
        torch.mm(x, w.t(), out=sums)
    elif x.device.type == "cpu":
        torch.mm(x.float(), w.float().t(), out=sums)
    else:
        torch.mm(x, w.t(), out_dtype=torch.float32, out=sums)

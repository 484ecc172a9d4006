"""Starting heads from a linear fit instead of from nothing.

Most of what a head has to know is linear in what it reads. That part is least squares over a few
thousand tokens, which takes seconds; gradient steps then begin where they would be after a
large part of their time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from penstock.train.draft_heads import Heads
from penstock.train.target import Target

RIDGE: Final = 1e-4
"""Ridge term, as a share of the inputs' mean square: inputs may be linearly dependent."""


@torch.no_grad()
def warm_start(heads: Heads, target: Target, batches: Iterable[Tensor]) -> None:
    """Give ``heads`` the linear maps that fit ``batches`` (int64 ``[B, T]``) best."""
    squares: list[Tensor] = []
    products: list[Tensor] = []
    for tokens in batches:
        pairs = heads.linear_pairs(target.observe(tokens, heads.layers))
        for i, (x, y) in enumerate(pairs):
            x, y = x.flatten(0, -2).float(), y.flatten(0, -2).float()
            if len(squares) <= i:
                squares.append(x.new_zeros(x.shape[1], x.shape[1]))
                products.append(x.new_zeros(x.shape[1], y.shape[1]))
            squares[i] += x.T @ x
            products[i] += x.T @ y
    maps = []
    for square, product in zip(squares, products, strict=True):
        ridge = RIDGE * square.diagonal().mean() * torch.eye(len(square), device=square.device)
        maps.append(torch.linalg.solve(square + ridge, product).T)
    heads.start_from(maps)

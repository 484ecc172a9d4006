"""Products with matrices in blocks: whether they are right on this device, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from gpu.results import BlockProduct, Blocks
from gpu.timing import Timer, best
from penstock.backends.cuda.matrix import Matrix, Shape, make_matrix
from penstock.backends.cuda.workspace import Workspace
from penstock.quant import BlockTensor
from penstock.quant.formats import GGUF_FORMATS

ROWS: Final = (1, 16, 64, 2048)
_FILLED = 512
"""Rows of blocks that are drawn; larger matrices repeat them."""
_COMPARED = 67
"""Rows of x whose products are compared with those of decoded blocks, together and alone."""
_HALVES: Final = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Where a block has numbers in float16."""


def measure(
    timer: Timer,
    device: torch.device,
    l2_bytes: int,
    send: Callable[[Blocks], None],
    n: int = 8192,
    k: int = 4096,
    rows: Sequence[int] = ROWS,
    repeats: int = 5,
) -> Blocks:
    """Products of every format with so many ``rows`` of bfloat16; ``send`` gets what there is after
    each format."""
    products: list[BlockProduct] = []
    for name in GGUF_FORMATS:
        tensor = drawn(name, min(n, _FILLED), k)
        error, alike = compare(tensor, device)
        for number in rows:
            one = filled(tensor, n, number, device)
            # As many as the L2 cache has no room for, in turn.
            copies = 1 + max(1, 4 * l2_bytes // one.nbytes) if l2_bytes else 1
            matrices = [one, *(filled(tensor, n, number, device) for _ in range(copies - 1))]
            call = partial(_next_product, cycle(matrices), *_arrays(number, n, k, device))
            seconds = best(timer, call, 4 * copies, repeats)
            products.append(
                BlockProduct(
                    format=name,
                    n=n,
                    k=k,
                    rows=number,
                    seconds=seconds,
                    weight_bytes=one.nbytes,
                    error=error,
                    rows_alike=alike,
                )
            )
            del matrices, one, call
        send(Blocks(products=list(products)))
    return Blocks(products=products)


def _arrays(rows: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, k, device=device).to(torch.bfloat16)
    return x, torch.empty(rows, n, device=device)


def _next_product(matrices: Iterator[Matrix], x: torch.Tensor, out: torch.Tensor) -> None:
    next(matrices).product(x, out, None, None)


def drawn(name: str, n: int, k: int) -> BlockTensor:
    """Blocks of random codes and scales."""
    form, rng = GGUF_FORMATS[name], np.random.default_rng(0)
    blocks = rng.integers(0, 256, (n, k // form.scheme.columns, form.scheme.block_bytes), np.uint8)
    for at in _HALVES.get(name, ()):
        halves = rng.uniform(0.002, 0.02, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 124, blocks.shape[:2])
    elif name == "NVFP4":
        blocks[..., :4] = rng.integers(8, 60, (*blocks.shape[:2], 4))
    return BlockTensor(form, blocks)


def filled(tensor: BlockTensor, n: int, max_rows: int, device: torch.device) -> Matrix:
    """A matrix of n rows, those of ``tensor`` again and again."""
    count, k = tensor.shape
    matrix = make_matrix(
        Shape(n, k, max_rows),
        "bfloat16",
        tensor.scheme,
        Workspace(device),
        torch.bfloat16,
        weight_only=True,
    )

    def put(array: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(device)

    for first in range(0, n, count):
        matrix.fill_quantized(first, tensor.rows((0, min(count, n - first))), "w", put)
    return matrix


def compare(tensor: BlockTensor, device: torch.device) -> tuple[float, bool]:
    """The largest error of a product, by the sum of its terms' sizes, in float32's last bits of k
    columns; and whether rows have the bits that they have alone."""
    n, k = tensor.shape
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(_COMPARED, k, generator=generator).to(torch.bfloat16)
    matrix = filled(tensor, n, _COMPARED, device)
    out = torch.empty(_COMPARED, n, device=device)
    matrix.product(x.to(device), out, None, None)
    values = torch.from_numpy(tensor.dequantize()).double()
    wide = x.double()
    wanted, sizes = wide @ values.t(), wide.abs() @ values.abs().t()
    error = ((out.cpu().double() - wanted).abs() / sizes).max().item() / (2.0**-24 * k)
    alike = True
    for rows in (1, 16, 33):
        some = torch.empty(rows, n, device=device)
        matrix.product(x[-rows:].to(device), some, None, None)
        alike &= torch.equal(some, out[-rows:])
    return error, alike

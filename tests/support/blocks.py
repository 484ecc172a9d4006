"""Matrices in blocks of published formats, drawn at random."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.quant import BlockTensor
from penstock.quant.formats import FORMATS

_HALVES: Final = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "NVFP4": (),
}
"""Where a block has numbers in float16."""


def random_blocks(name: str, n: int, k: int, rng: np.random.Generator) -> BlockTensor:
    """An ``[n, k]`` matrix of a format, of random codes and scales of usual sizes of both signs."""
    form = FORMATS[name]
    count, rest = divmod(k, form.scheme.columns)
    assert not rest, "k is of whole blocks"
    blocks = rng.integers(0, 256, (n, count, form.scheme.block_bytes), np.uint8)
    for at in _HALVES[name]:
        halves = rng.uniform(0.002, 0.02, (n, count)) * rng.choice([-1, 1], (n, count))
        blocks[..., at : at + 2] = halves.astype(np.float16)[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 124, (n, count))
    elif name == "NVFP4":
        blocks[..., :4] = rng.integers(8, 60, (n, count, 4))
    return BlockTensor(form, blocks)

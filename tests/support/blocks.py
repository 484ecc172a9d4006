"""Matrices in blocks of published formats, drawn at random, and models that have such."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.weights import WeightSource, WeightValue
from penstock.models.gguf.blocks import BlockMatrix
from penstock.quant import BlockScheme, BlockTensor
from penstock.quant.formats import BLOCK_FORMATS, GGUF_FORMATS

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
}
"""Where a block has numbers in float16."""


def random_blocks(
    name: str, n: int, k: int, rng: np.random.Generator, spread: float | None = None
) -> BlockTensor:
    """An ``[n, k]`` matrix of a format, of random codes and scales of both signs; with ``spread``
    of about that standard deviation, where scales are in float16."""
    form = BLOCK_FORMATS[name]
    count, rest = divmod(k, form.scheme.columns)
    assert not rest, "k is of whole blocks"
    blocks = rng.integers(0, 256, (n, count, form.scheme.block_bytes), np.uint8)
    drawn = [
        (at, rng.uniform(0.002, 0.02, (n, count)) * rng.choice([-1, 1], (n, count)))
        for at in _HALVES.get(name, ())
    ]
    for at, halves in drawn:
        blocks[..., at : at + 2] = halves.astype(np.float16)[..., None].view(np.uint8)
    if spread is not None:
        factor = spread / BlockTensor(form, blocks).dequantize().std()
        for at, halves in drawn:
            scaled = (halves * factor).astype(np.float16)
            blocks[..., at : at + 2] = scaled[..., None].view(np.uint8)
    if name in ("MXFP4", "MXFP8"):
        blocks[..., 0] = rng.integers(118, 124, (n, count))
    elif name == "NVFP4":
        blocks[..., :4] = rng.integers(8, 60, (n, count, 4))
    elif name not in GGUF_FORMATS:
        whole = name == "NVFP4_SCALED"  # one scale for all of a row
        scales = rng.uniform(0.002, 0.02, (n, 1 if whole else count)).astype(np.float32)
        blocks[..., :4] = scales[..., None].view(np.uint8)
        if whole:
            blocks[..., 4:6] = rng.integers(8, 60, (n, count, 2))
    if "FP8" in name:  # no NaN
        codes = blocks[..., 1 if name == "MXFP8" else 4 :]
        codes[codes & 127 == 127] = 0
    return BlockTensor(form, blocks)


@dataclass(frozen=True)
class BlockFormats:
    """A checkpoint whose matrices are in blocks (``models.quantized.QuantizedFormat``): of the
    format by the last word of a matrix's name, or else of ``other``."""

    other: str
    by_word: Mapping[str, str]

    @property
    def schemes(self) -> tuple[BlockScheme, ...]:
        names = sorted({self.other, *self.by_word.values()})
        return tuple(GGUF_FORMATS[name].scheme for name in names)

    @property
    def as_floats(self) -> tuple[str, ...]:
        return ()

    @property
    def any_order(self) -> bool:
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def matrix(self, name: str, columns: int | None = None) -> BlockMatrix:
        return BlockMatrix(
            GGUF_FORMATS[self.by_word.get(name.rpartition(".")[2], self.other)].scheme
        )

    def limited(self, formats: Collection[str], rounded: bool) -> BlockFormats:
        return self

    def is_idle(self, tensor: str) -> bool:
        return False


class BlockWeights:
    """Weights of which matrices in blocks are drawn at random, and others are ``floats``."""

    def __init__(
        self, weights: Mapping[str, PlanWeight], formats: BlockFormats, floats: WeightSource
    ) -> None:
        self._weights, self._formats, self._floats = weights, formats, floats

    def names(self) -> Iterable[str]:
        return self._weights.keys()

    def get(self, name: str) -> WeightValue:
        shape = self._weights[name].shape
        if len(shape) < 2 or "norm" in name:
            return self._floats.get(name)
        return self._blocks(name, (shape[0], shape[1]), 0)

    def member(self, name: str, index: int) -> WeightValue:
        _, n, k = self._weights[name].shape
        return self._blocks(name, (n, k), index + 1)

    def _blocks(self, name: str, shape: tuple[int, int], seed: int) -> BlockTensor:
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        name = self._formats.matrix(name).scheme.format
        return random_blocks(name, *shape, rng, spread=shape[1] ** -0.5)

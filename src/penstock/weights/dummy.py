"""Seeded random weights for a model that has a configuration alone: for benchmarks and tests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.source_walks import packed
from penstock.interface.sources import Shape
from penstock.interface.weights import WeightValue
from penstock.models.in_blocks import InBlocks
from penstock.models.integer_matrix import Integers
from penstock.models.lattice_codes import LatticeCodes
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import DType
from penstock.quant import (
    BlockScheme,
    BlockTensor,
    CodebookMatrix,
    CodebookScheme,
    LatticeMatrix,
    LatticeScheme,
)
from penstock.quant.lattice import SIZE, every_point
from penstock.weights.dummy_blocks import dummy_blocks, dummy_codes
from penstock.weights.tensor_file import NUMPY_DTYPES

_PERIOD: Final = 1_048_583
"""Number of random values drawn. It is prime, so that no two rows of a matrix begin at the same
one, which would make them equal and their logits tie."""


@lru_cache(maxsize=1)
def _normal(seed: int) -> NDArray[np.float32]:
    """The block ``[_PERIOD]``, read-only. Kept: tests make hundreds of sources of one seed."""
    generator = np.random.Generator(np.random.Philox(seed & (2**64 - 1)))
    values = generator.standard_normal(_PERIOD, np.float32)
    values.flags.writeable = False
    return values


class DummyWeights:
    """A WeightSource whose values depend on ``seed``, the weight's name and its shape only.

    One block of normal values is drawn and every weight is a copy of it, repeated from an offset
    that its name decides: a memory copy, where drawing a billion values would take half a minute.
    Matrices have variance ``1 / fan_in``, so activations keep their size from layer to layer;
    norms lie around 1 and biases around 0.
    """

    def __init__(self, weights: Mapping[str, PlanWeight], seed: int, dtype: DType) -> None:
        self._weights = weights
        self._seed = seed
        self._dtype = NUMPY_DTYPES[dtype]
        self._block = lru_cache(maxsize=8)(self._scaled)
        self._codes = lru_cache(maxsize=8)(lambda scheme: dummy_codes(_normal(seed), scheme))

    def names(self) -> Iterable[str]:
        return self._weights.keys()

    def get(self, name: str) -> WeightValue:
        """A new array in the source's dtype, read-only; of a share, its rows of the whole. Where
        the plan has a checkpoint's matrix in blocks of small floats, it is in these."""
        weight = self._weights[name]
        scheme = _kept_in(weight)
        if isinstance(scheme, LatticeScheme):
            return self._of_points(name, scheme, weight.shape)
        if isinstance(scheme, CodebookScheme):
            return self._in_codebooks(name, scheme, weight.shape)
        if scheme is not None:
            return self._in_blocks(name, scheme, weight.shape)
        if weight.share is not None:
            whole = self._values(weight.share.name, weight.share.shape)
            return weight.share.of(_pruned(weight, whole))
        return _pruned(weight, self._values(name, weight.shape))

    def member(self, name: str, index: int) -> WeightValue:
        """A matrix of a stack, the same as in all of it."""
        weight, share = self._weights[name], self._weights[name].share
        scheme = _kept_in(weight)
        if isinstance(scheme, BlockScheme):
            return self._in_blocks(f"{name}.{index}", scheme, weight.shape[1:])
        if share is not None:  # rows of each matrix
            shape = share.shape[1:]
            whole = self._values(share.name, shape, index * math.prod(shape))
            return share.of(_pruned(weight, whole))
        shape = weight.shape[1:]
        return _pruned(weight, self._values(name, shape, index * math.prod(shape)))

    def _in_blocks(self, name: str, scheme: BlockScheme, shape: Shape) -> BlockTensor:
        codes = self._codes(scheme)
        return dummy_blocks(np.roll(codes, -(self._offset(name) % codes.size)), scheme, *shape)

    def _drawn(self, name: str) -> np.random.Generator:
        seeds = [self._seed & (2**64 - 1), self._offset(name)]
        return np.random.Generator(np.random.Philox(seeds))

    def _of_points(self, name: str, scheme: LatticeScheme, shape: Shape) -> LatticeMatrix:
        n, k = shape
        shape = n, -(-k // SIZE), scheme.bits
        codes = self._drawn(name).integers(0, 256, shape, np.uint8)
        length = np.sqrt(np.square(every_point()).mean())
        return LatticeMatrix(scheme, codes, np.float32(1 / (length * math.sqrt(k))), k)

    def _in_codebooks(self, name: str, scheme: CodebookScheme, shape: Shape) -> CodebookMatrix:
        """Evenly distributed codes of ascending values, and outliers three times as large."""
        n, k = shape
        drawn, deviation = self._drawn(name), np.float32(1 / math.sqrt(k))
        codes = drawn.integers(-(2**31), 2**31, (n, -(-k * scheme.bits // 32)), np.int32)
        values = np.sort(drawn.standard_normal((n, 1 << scheme.bits), np.float32), axis=1)
        count = scheme.outlier_count(n, k)
        # One in each of as many stretches of the matrix.
        starts = np.arange(count + 1) * (n * k) // max(count, 1)
        flat = drawn.integers(starts[:-1], starts[1:])
        ends = np.searchsorted(flat, np.arange(n + 1) * k).astype(np.int32)
        outliers = drawn.standard_normal(count, np.float32) * np.float32(3)
        columns = (flat % k).astype(np.int32)
        return CodebookMatrix(
            scheme, codes, values * deviation, ends, columns, outliers * deviation, k
        )

    def _values(self, name: str, shape: Shape, first: int = 0) -> NDArray[Any]:
        """Values of a weight from element ``first`` on."""
        size, offset = math.prod(shape), (self._offset(name) + first) % _PERIOD
        if len(shape) > 1:
            mean, deviation = 0.0, 1.0 / math.sqrt(shape[-1])
        else:
            mean, deviation = 0.0 if name.endswith(".bias") else 1.0, 0.1
        if offset + size <= _PERIOD:  # a small weight: what it is of the block, alone
            result = self._scaled(mean, deviation, offset, offset + size)
        else:
            block = self._block(mean, deviation)
            result, position = np.empty(size, self._dtype), 0
            while position < size:
                count = min(_PERIOD - offset, size - position)
                result[position : position + count] = block[offset : offset + count]
                position, offset = position + count, 0
        result.flags.writeable = False
        return result.reshape(shape)

    def _scaled(
        self, mean: float, deviation: float, start: int = 0, stop: int = _PERIOD
    ) -> NDArray[Any]:
        normal = _normal(self._seed)[start:stop]
        block: NDArray[Any] = (normal * np.float32(deviation) + np.float32(mean)).astype(
            self._dtype
        )
        return block

    def _offset(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % _PERIOD


def _kept_in(weight: PlanWeight) -> BlockScheme | LatticeScheme | CodebookScheme | None:
    """The blocks of small floats, the points, or the codebooks that a checkpoint would have the
    weight in, and that its op reads; None: floats."""
    if weight.floats or weight.checkpoint == "target":
        return None
    forms = (matrix.format for matrix in packed(weight.source))
    quantized = InBlocks | LatticeCodes | RowCodebooks
    kept = (form.scheme for form in forms if isinstance(form, quantized))
    return next(kept, None)


def _pruned(weight: PlanWeight, values: NDArray[Any]) -> NDArray[Any]:
    """The values of a matrix ``[n, k]``; with two of each four columns 0 where a checkpoint would
    have it so."""
    forms = (matrix.format for matrix in packed(weight.source))
    if not any(isinstance(form, Integers) and form.held_sparse for form in forms):
        return values
    result = values.copy()
    result[:, 1::4] = result[:, 2::4] = 0
    result.flags.writeable = False
    return result

"""Products with weights in blocks of published formats, on every native variant that this machine
runs.

Rows must equal themselves bit by bit in any batch; ``csrc/bench/kernels_check.cpp`` compares every
kernel with scalar code. Here the values that blocks stand for are those of their decoders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.blocks import random_blocks
from support.native_arrays import as_bytes
from support.native_executor import Buffers, make
from support.native_products import DTYPES

from penstock.backends.reference.numerics import activate
from penstock.backends.reference.products import block_product, quantize_rows
from penstock.quant import BlockTensor
from penstock.quant.formats import BLOCK_FORMATS

pytestmark = pytest.mark.thinned(5)

KINDS = [
    pytest.param(name, alone, id=f"{name}-{'alone' if alone else 'int8'}")
    for name, form in BLOCK_FORMATS.items()
    for alone in (False, True)
    if alone or form.scheme.whole
]
"""Formats, and whether activations stay as they are."""


@dataclass(frozen=True)
class BlockProduct:
    """Parts of one format, joined, or gate and up by silu."""

    parts: tuple[BlockTensor, ...]
    gated: bool = False
    weight_only: bool = False
    bias: np.ndarray | None = None

    def run(
        self, module: Any, x: np.ndarray, threads: int = 1, out_elem: str = "float32"
    ) -> np.ndarray:
        total = sum(part.shape[0] for part in self.parts)
        n = total // 2 if self.gated else total
        out = np.full((len(x), n * np.dtype(DTYPES[out_elem]).itemsize), 0xA5, np.uint8)
        module.block_linear(
            parts=[part.blocks.reshape(len(part.blocks), -1) for part in self.parts],
            format=self.parts[0].scheme.format,
            k=self.parts[0].shape[1],
            bias=self.bias,
            gate="silu" if self.gated else "none",
            x=as_bytes(x),
            x_elem=x.dtype.name,
            out=out.reshape(-1),
            out_elem=out_elem,
            weight_only=self.weight_only,
            threads=threads,
        )
        return out.view(DTYPES[out_elem])

    def expected(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums in float64, and those of their terms' sizes."""
        values = np.concatenate([part.dequantize() for part in self.parts]).astype(np.float64)
        taken = x.astype(np.float64)
        if not self.weight_only:
            groups = [
                quantize_rows(x[:, first : first + 32].astype(np.float32))
                for first in range(0, x.shape[1], 32)
            ]
            taken = np.concatenate(
                [codes * scales.astype(np.float64) for codes, scales in groups], 1
            )
        sums, sizes = taken @ values.T, np.abs(taken) @ np.abs(values).T
        if self.bias is not None:
            sums, sizes = sums + self.bias, sizes + np.abs(self.bias)
        return sums, sizes


def inputs(rng: np.random.Generator, rows: int, k: int, dtype: str) -> np.ndarray:
    """Rows with a few values far out, as activations have them."""
    x = rng.standard_normal((rows, k)) * np.where(rng.random(k) < 0.02, 40, 1)
    return x.astype(DTYPES[dtype])


@pytest.mark.parametrize(("name", "weight_only"), KINDS)
def test_sums(module: Any, name: str, weight_only: bool) -> None:
    rng = np.random.default_rng(3)
    columns = BLOCK_FORMATS[name].scheme.columns
    for n, least, rows, dtype in (
        ((1,), 32, 1, "float32"),
        ((33, 17), 96, 5, "bfloat16"),
        ((48,), 800, 19, "float32"),
        ((16, 5), 544, 3, "bfloat16"),
    ):
        k = -(-least // columns) * columns
        bias = rng.standard_normal(sum(n)).astype(np.float32) if rows % 2 else None
        parts = tuple(random_blocks(name, each, k, rng) for each in n)
        product = BlockProduct(parts, weight_only=weight_only, bias=bias)
        x = inputs(rng, rows, k, dtype)
        sums, sizes = product.expected(x)
        # Values are rounded once by their decoder: a scale and a least value may be much larger.
        error = sizes * 2.0**-24 * (k + 8) + 1e-20
        if any(part.scheme.format in LEAST for part in parts):
            error = error * 8
        if name in ("NF4", "FP4") and dtype == "bfloat16":  # points are rounded to it
            error = error + sizes * 2.0**-8
        np.testing.assert_array_less(np.abs(product.run(module, x, 2) - sums), error)


LEAST = frozenset({"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"})
"""Formats whose values have two terms."""


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_gated(module: Any, name: str) -> None:
    rng = np.random.default_rng(4)
    k = max(64, BLOCK_FORMATS[name].scheme.columns)
    parts = (random_blocks(name, 24, k, rng), random_blocks(name, 24, k, rng))
    x = inputs(rng, 7, k, "float32")
    x /= 100  # the gate overflows nowhere
    alone = not BLOCK_FORMATS[name].scheme.whole
    gate, up = (BlockProduct((part,), weight_only=alone).run(module, x) for part in parts)
    got = BlockProduct(parts, gated=True, weight_only=alone).run(module, x)
    np.testing.assert_allclose(got, activate(gate, "silu") * up, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "weight_only"), KINDS)
def test_rows_keep_to_themselves(module: Any, name: str, weight_only: bool) -> None:
    rng = np.random.default_rng(5)
    k = -(-576 // BLOCK_FORMATS[name].scheme.columns) * BLOCK_FORMATS[name].scheme.columns
    product = BlockProduct((random_blocks(name, 40, k, rng),), weight_only=weight_only)
    for dtype in DTYPES:
        x = inputs(rng, 70, k, dtype)
        whole = product.run(module, x)
        for rows in (1, 2, 3, 4, 5, 6, 8, 13, 33, 69):
            for first in {0, len(x) - rows}:
                part = product.run(module, x[first : first + rows], 1 + rows % 3)
                assert np.array_equal(part, whole[first : first + rows]), (rows, first)


@pytest.mark.parametrize("weight_only", [False, True], ids=["int8", "alone"])
def test_bad_values_stay_in_their_row(module: Any, weight_only: bool) -> None:
    rng = np.random.default_rng(6)
    for name in ("Q4_K", "Q6_K", "Q5_0", "Q8_0"):
        product = BlockProduct((random_blocks(name, 20, 512, rng),), weight_only=weight_only)
        x = inputs(rng, 9, 512, "float32")
        clean = product.run(module, x)
        for value in (np.nan, np.inf, -np.inf):
            poisoned = x.copy()
            poisoned[4, 301] = value
            got = product.run(module, poisoned)
            assert not np.isfinite(got[4]).any()
            assert np.array_equal(np.delete(got, 4, 0), np.delete(clean, 4, 0))


def test_narrow_output_is_rounded(module: Any) -> None:
    rng = np.random.default_rng(7)
    product = BlockProduct((random_blocks("Q4_K", 33, 256, rng),))
    x = inputs(rng, 6, 256, "bfloat16")
    wide = product.run(module, x).astype(ml_dtypes.bfloat16)
    assert np.array_equal(product.run(module, x, out_elem="bfloat16"), wide)


@pytest.mark.parametrize("name", [n for n, form in BLOCK_FORMATS.items() if form.scheme.whole])
def test_the_reference_agrees(module: Any, name: str) -> None:
    rng = np.random.default_rng(8)
    part = random_blocks(name, 30, 512, rng)
    x = inputs(rng, 4, 512, "float32")
    _, sizes = BlockProduct((part,)).expected(x)
    got = BlockProduct((part,)).run(module, x)
    assert np.all(np.abs(got - block_product(x, part)) <= sizes * 1e-5)


def test_rows_of_no_whole_blocks_are_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        module.block_linear(
            parts=[np.zeros((4, 144), np.uint8)],
            format="Q4_K",
            k=255,
            bias=None,
            gate="none",
            x=np.zeros(255 * 4, np.uint8),
            x_elem="float32",
            out=np.zeros(16, np.uint8),
            out_elem="float32",
            threads=1,
        )


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_looked_up_rows_are_the_decoders_values(module: Any, name: str) -> None:
    columns = -(-96 // BLOCK_FORMATS[name].scheme.columns) * BLOCK_FORMATS[name].scheme.columns
    table = random_blocks(name, 37, columns, np.random.default_rng(9))
    executor = make(module, vocabulary=37, arena_bytes=1 << 14)
    matrix = executor.add_block_matrix(format=name, n=37, k=columns, gated=False, weight_only=True)
    out = Buffers(executor).add(columns)
    executor.pack_block_rows(matrix, 0, 20, as_bytes(table.blocks[:20]))
    executor.pack_block_rows(matrix, 20, 17, as_bytes(table.blocks[20:]))
    executor.append_packed_embed(matrix, out)
    ids, none = np.array([36, 0, 19, 20], np.int32), np.empty(0, np.int32)
    places, pairs = np.arange(4, dtype=np.int32), np.empty((0, 2), np.int32)
    bounds, context = np.array([0, 4], np.int32), np.array([4], np.int32)
    executor.run(ids, places, bounds, context, (), none, none, pairs, none, pairs, None)
    got = executor.view(out).view(np.float32)
    assert np.array_equal(got, table.dequantize()[ids])


def test_packed_tables_of_embeddings_are_one_matrix(module: Any) -> None:
    executor = make(module, vocabulary=37)
    out = Buffers(executor).add(64)

    def matrix(**changes: Any) -> Any:
        shape = {"format": "Q8_0", "n": 37, "k": 64, "gated": False, "weight_only": False}
        return executor.add_block_matrix(**(shape | changes))

    floats = executor.add_matrix("float32", 37, 64, False)
    with pytest.raises(ValueError, match="is in blocks or in groups"):
        executor.append_packed_embed(floats, out)
    groups = {"bits": 8, "group": 0, "n": 36, "k": 64, "zero_points": False, "weight_only": False}
    with pytest.raises(ValueError, match="a row for each of 37 tokens, and not 36"):
        executor.append_packed_embed(executor.add_int_matrix(**groups, gated=False), out)
    for wrong in (matrix(gated=True), matrix(k=96), matrix(experts=2)):
        with pytest.raises(ValueError, match="one matrix with the output's columns"):
            executor.append_packed_embed(wrong, out)
    with pytest.raises(ValueError, match="a row for each of 37 tokens, and not 36"):
        executor.append_packed_embed(matrix(n=36), out)
    executor.append_packed_embed(matrix(), out)


def test_floats_are_not_multiplied_as_integers(module: Any) -> None:
    executor = make(module)
    for name, form in BLOCK_FORMATS.items():
        if not form.scheme.whole:
            with pytest.raises(ValueError, match="stays in floats"):
                executor.add_block_matrix(format=name, n=16, k=256, gated=False, weight_only=False)


def test_matrices_of_no_format_or_no_whole_blocks_are_refused(module: Any) -> None:
    executor = make(module)
    shape = {"n": 16, "gated": False, "weight_only": False}
    with pytest.raises(ValueError, match="no kernel has blocks of the format Q9_X"):
        executor.add_block_matrix(format="Q9_X", k=256, **shape)
    with pytest.raises(ValueError, match="whole blocks, and not of 128"):
        executor.add_block_matrix(format="Q4_K", k=128, **shape)
    matrix = executor.add_block_matrix(format="Q4_K", k=256, **shape)
    for rows in (np.zeros(143, np.uint8), np.zeros(2 * 144, np.uint8)):
        with pytest.raises(ValueError, match="rows of blocks"):
            executor.pack_block_rows(matrix, 0, 1, rows)
    with pytest.raises(ValueError, match="another kind"):
        executor.pack_rows(matrix, 0, 1, np.zeros(1024, np.uint8))

"""Codes packed into words."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from penstock.quantize.forms.words import words


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 31, 96])
def test_each_row_is_a_stream_of_bits(bits: int, count: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, count)).astype(np.uint8)
    for row, own in zip(codes, words(codes, bits).view(np.uint32), strict=True):
        stream = sum(int(code) << (bits * i) for i, code in enumerate(row))
        assert sum(int(word) << (32 * i) for i, word in enumerate(own)) == stream
        assert len(own) == -(-count * bits // 32)


def test_packing_takes_little_memory_besides_its_result() -> None:
    """A table of embeddings may have a billion codes."""
    codes = np.zeros((1 << 14, 1 << 10), np.uint8)
    tracemalloc.start()
    try:
        packed = words(codes, 8)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * packed.nbytes

"""Decoders of block formats give the bits that ggml's own decoders give."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from penstock.quant import BlockTensor
from penstock.quant.formats import BLOCK_FORMATS, GGUF_FORMATS

# Random bytes are scales that are not finite, too.
pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


def some_blocks(name: str, n: int, count: int, seed: int) -> BlockTensor:
    """A matrix of random bytes, of which every format's scales are finite."""
    form = BLOCK_FORMATS[name]
    blocks = np.random.default_rng(seed).integers(
        0, 256, (n, count, form.scheme.block_bytes), np.uint8
    )
    finite = np.isfinite(form.decode(blocks.reshape(-1, form.scheme.block_bytes))).all(axis=1)
    blocks.reshape(len(finite), -1)[~finite] = 0
    return BlockTensor(form, blocks)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_values(name: str) -> None:
    tensor = some_blocks(name, 7, 300, seed=1)
    expected = dequantize(tensor.blocks.reshape(7, -1), GGMLQuantizationType[name])
    values = tensor.dequantize()
    assert values.shape == tensor.shape == expected.shape
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))
    assert values.any()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_decoders_take_any_blocks(name: str) -> None:
    tensor = some_blocks(name, 3, 5, seed=3)
    columns = BLOCK_FORMATS[name].scheme.columns
    assert tensor.dequantize().shape == tensor.shape == (3, 5 * columns)
    assert np.array_equal(tensor.rows((1, 2)).dequantize(), tensor.dequantize()[1:2])


def test_all_that_kernels_read_are_there() -> None:
    k_quants = {f"Q{bits}_K" for bits in range(2, 7)}
    legacy = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    assert set(GGUF_FORMATS) == legacy | k_quants | {"IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"}


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_scales_that_are_not_finite(name: str) -> None:
    """They are found by their bytes alone, whatever codes and scales of sub-blocks are."""
    form = GGUF_FORMATS[name]
    blocks = np.random.default_rng(3).integers(0, 256, (3000, form.scheme.block_bytes), np.uint8)
    # Of each byte, some blocks have the values that are not finite as parts of float16, or as E8M0.
    for at in range(form.scheme.block_bytes):
        blocks[at % 1000 :: 1000, at] = [0x7C, 0xFF, 0xFE]
    with np.errstate(all="ignore"):
        finite = np.isfinite(form.decode(blocks)).all(axis=1)
    if form.unusable is None:
        assert name == "NVFP4"
        assert finite.all()
        return
    assert (~finite).sum() > 0
    found = form.unusable(blocks)
    assert found[~finite].all()
    if name != "MXFP4":  # whose largest scales are usable where all codes are small
        assert not found[finite].any()
    kept = BlockTensor(form, blocks[finite & ~found][:99].reshape(33, 3, -1).copy())
    assert kept.first_unusable() is None
    kept.blocks[20, 1] = kept.blocks[31, 0] = blocks[~finite][0]
    assert kept.first_unusable() == 20
    kept.blocks[:] = 0  # scales of 0 are fine
    assert kept.first_unusable() is None


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_sizes(name: str) -> None:
    scheme = GGUF_FORMATS[name].scheme
    assert (scheme.columns, scheme.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_rows(name: str) -> None:
    tensor = some_blocks(name, 9, 3, seed=2)
    values = tensor.dequantize()
    some = tensor.rows((1, 3), (7, 9))
    assert np.array_equal(some.dequantize(), values[[1, 2, 7, 8]])
    assert np.shares_memory(tensor.rows((2, 5)).blocks, tensor.blocks)

"""Blocks of small floating-point numbers on the device: products and lookups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends.cuda.ptx import Assembly
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from backends.cuda.test_blocks import close, drawn, floats, matrix_of, product, put  # noqa: E402

from penstock.backends.cuda.block_layouts import BLOCK_LAYOUTS  # noqa: E402
from penstock.backends.cuda.block_matrix import BlockTable  # noqa: E402
from penstock.backends.cuda.kernels.block_operands import _assembly  # noqa: E402
from penstock.backends.cuda.kernels.embed_blocks import embed_blocks  # noqa: E402
from penstock.quant import BlockScheme, BlockTensor  # noqa: E402
from penstock.quant.blocks import BlockFormat  # noqa: E402

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def e4m3(codes: Bytes) -> F32:
    return np.ascontiguousarray(codes).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def single(blocks: Bytes) -> F32:
    return np.ascontiguousarray(blocks[:, :4]).view(np.float32)


def fp8(blocks: Bytes) -> F32:
    return np.asarray(e4m3(blocks[:, 4:]) * single(blocks), np.float32)


def mxfp8(blocks: Bytes) -> F32:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
    return np.asarray(e4m3(blocks[:, 1:]) * scale, np.float32)


def nvfp4(blocks: Bytes) -> F32:
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = np.stack([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], axis=2).reshape(-1, 2, 16)
    values = np.concatenate([table, -table])[codes]
    scales = e4m3(blocks[:, 4:6]) * single(blocks)
    return np.asarray((values * scales[:, :, None]).reshape(-1, 32), np.float32)


DECODERS: dict[str, tuple[int, int, Callable[[Bytes], F32]]] = {
    "FP8_128": (128, 132, fp8),
    "FP8_32": (32, 36, fp8),
    "MXFP8": (32, 33, mxfp8),
    "NVFP4_SCALED": (32, 22, nvfp4),
}


def blocks_of(name: str, n: int, k: int) -> BlockTensor:
    columns, nbytes, decode = DECODERS[name]
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (n, -(-k // columns), nbytes), np.uint8)
    scales = rng.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float32)
    if name == "NVFP4_SCALED":
        scales[:] = scales[:, :1]  # of all of a row
        blocks[..., 4:6] = rng.integers(0, 127, (*blocks.shape[:2], 2))
    if name == "MXFP8":
        blocks[..., 0] = rng.integers(110, 124, blocks.shape[:2])
    else:
        blocks[..., :4] = scales[..., None].view(np.uint8)
    if decode is not nvfp4:
        codes = blocks[..., nbytes - columns :]
        codes[codes & 127 == 127] = 5  # no NaN
    return BlockTensor(BlockFormat(BlockScheme(name, columns, nbytes), decode), blocks)


@pytest.mark.parametrize("name", DECODERS)
def test_products(name: str, device: Any) -> None:
    for n, k, rows, dtype in ((5, 32, 1, torch.bfloat16), (35, 300, 3, torch.bfloat16),
                              (9, 160, 2, torch.float16)):  # fmt: skip
        tensor = blocks_of(name, n, k)
        x = drawn(rows, tensor.shape[1])
        matrix = matrix_of(tensor, device, x_dtype=dtype)
        close(product(matrix, x, device, x_dtype=dtype), x, tensor)


@pytest.mark.parametrize("name", DECODERS)
def test_rows_that_are_looked_up_are_the_decoders(name: str, device: Any) -> None:
    tensor = blocks_of(name, 29, 544)
    table = BlockTable(*tensor.shape, tensor.scheme, device)
    table.fill(tensor, "embed", put(device))
    ids = torch.tensor([28, 0, 7, 7], dtype=torch.int32, device=device)
    out = torch.empty((4, tensor.shape[1]), device=device)
    embed_blocks(ids, table.weights, out)
    np.testing.assert_array_equal(out.cpu().numpy(), tensor.dequantize()[ids.cpu().numpy()])


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_are_about_the_checkpoints(name: str, device: Any) -> None:
    tensor = blocks_of(name, 12, 1024)
    matrix = matrix_of(tensor, device)
    assert matrix.nbytes == BLOCK_LAYOUTS[name].nbytes(12, 1024)
    assert matrix.nbytes <= tensor.scheme.nbytes(12, 1024)


def test_assembly_of_numbers_of_8_bits() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    outs = Assembly(_assembly("e4m3", 0, 8, 0), "=r,=r,r", 2).run(words.view(np.uint32))
    codes = words.view(np.uint8).reshape(-1, 2)
    for plane, out in enumerate(outs):
        numbers = codes[:, plane] & 127 != 127
        np.testing.assert_array_equal(floats(out)[numbers], e4m3(codes[:, plane])[numbers])

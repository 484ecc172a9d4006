"""Reads matrices that a GGUF file has in blocks, as views of the mapped file."""

from __future__ import annotations

from penstock.interface.sources import Packed
from penstock.quant import BlockTensor
from penstock.weights.gguf_file import GgufFile
from penstock.weights.rows import Runs
from penstock.weights.tensor_file import Found


def read_blocks(packed: Packed, found: Found, runs: Runs | None) -> BlockTensor:
    """The rows of ``runs`` of the matrix ``[n, k]``, None: all; those of a stack of matrices lie
    one below another."""
    (stored,) = packed.format.tensors(packed.name, packed.shape)
    file, tensor = found[stored.name]
    assert isinstance(file, GgufFile)
    return file.blocks(tensor.name, runs)

"""Matrices rounded to blocks by the native library: ``csrc/kernels/encode_blocks.h``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.backends.cpu.interface import NativeModule
from penstock.backends.cpu.native import built, load
from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode import MatrixEncoder, encode
from penstock.quant.formats import GGUF_FORMATS


def matrix_encoder() -> MatrixEncoder:
    """The native encoder; where no native library was built, that in NumPy, which gives the same
    bytes. Raises ConfigError for a library that cannot be loaded."""
    return NativeEncoder(load()) if built() else encode


@dataclass(frozen=True)
class NativeEncoder:
    """A :class:`~penstock.quant.encode.encoder.MatrixEncoder` that runs on the calling thread, and
    lets others run meanwhile."""

    module: NativeModule

    def __call__(self, name: str, values: F32, importance: F32 | None = None, /) -> Bytes:
        scheme = GGUF_FORMATS[name].scheme
        rows, columns = values.shape
        encoded = np.empty((rows, columns // scheme.columns, scheme.block_bytes), np.uint8)
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        self.module.encode_blocks(name, flat, weights, encoded.reshape(-1))
        return encoded

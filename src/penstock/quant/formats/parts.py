"""What several formats have in common: scales in float16, codes in parts of bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.gguf.types import type_named
from penstock.quant.blocks import F32, BlockFormat, Bytes
from penstock.quant.scheme import BlockScheme


def of_files(
    name: str,
    decode: Callable[[Bytes], F32],
    unusable: Callable[[Bytes], NDArray[np.bool_]] | None = None,
) -> BlockFormat:
    """The format of a type of tensors in GGUF files, which has its sizes."""
    kind = type_named(name)
    return BlockFormat(BlockScheme(name, kind.columns, kind.block_bytes), decode, unusable)


def half(two_bytes: Bytes) -> F32:
    """Float16 numbers of bytes ``[blocks, 2]``, widened, ``[blocks, 1]``."""
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)


def not_finite(*offsets: int) -> Callable[[Bytes], NDArray[np.bool_]]:
    """Whether one of a block's float16 numbers, which begin at these bytes, is not finite."""
    largest = np.uint8(0x7C)  # an exponent of ones, in the byte that has the sign above it

    def unusable(blocks: Bytes) -> NDArray[np.bool_]:
        found = np.zeros(len(blocks), np.bool_)
        for offset in offsets:
            found |= blocks[:, offset + 1] & largest == largest
        return found

    return unusable


def halves(packed: Bytes) -> Bytes:
    """Codes of 4 bits of bytes ``[..., n]``, ``[..., 2 n]``: byte i has that of column i in its low
    bits, and that of column i + n in its high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def bits(packed: Bytes) -> Bytes:
    """The bits of bytes ``[blocks, n]``, the lowest of each first, ``[blocks, 8 n]``."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def planes(packed: Bytes, together: int, width: int) -> Bytes:
    """Codes of ``width`` bits of bytes ``[blocks, n]``, ``[blocks, n * 8 / width]``.

    Each run of ``together`` bytes has the codes of as many columns in its lowest bits, those of the
    columns after them in the next, and so on.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), -1, 1, together)
    return ((runs >> shifts) & np.uint8((1 << width) - 1)).reshape(len(packed), -1)

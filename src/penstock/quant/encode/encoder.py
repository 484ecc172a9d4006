"""What encoders of blocks are."""

from __future__ import annotations

from typing import Protocol

from penstock.quant.blocks import F32, Bytes


class Encoder(Protocol):
    """Rounds finite values float32 ``[blocks, columns]`` to uint8 ``[blocks, block_bytes]``.

    ``importance``, float32 of the same shape, is how much the square of an error counts in each
    column; None: encoders choose.
    """

    def __call__(self, blocks: F32, importance: F32 | None, /) -> Bytes: ...


class MatrixEncoder(Protocol):
    """Rounds float32 ``[n, k]`` to the format ``name``: uint8 ``[n, k / columns, block_bytes]``.

    ``k`` is a multiple of the format's columns, and all values are finite and at most
    :data:`~penstock.quant.encode.MAX_VALUE` in magnitude, which the caller has checked.
    ``importance``, float32 ``[k]``, is how much the square of an error counts in each column:
    numbers above 0 of a mean about 1; None: formats have defaults. A row's blocks depend on that
    row and on ``importance`` alone.
    """

    def __call__(self, name: str, values: F32, importance: F32 | None = None, /) -> Bytes: ...

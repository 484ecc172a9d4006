"""What an encoder of blocks is."""

from __future__ import annotations

from typing import Protocol

from penstock.quant.blocks import F32, Bytes


class Encoder(Protocol):
    """Rounds finite values float32 ``[blocks, columns]`` to uint8 ``[blocks, block_bytes]``."""

    def __call__(self, blocks: F32, /) -> Bytes: ...

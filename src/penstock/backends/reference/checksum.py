"""CRC-32C by a table, where nothing is compiled."""

from __future__ import annotations

import functools
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # 0x1EDC6F41 with its bits reversed


def crc32c(content: bytes, before: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``content`` after bytes whose checksum is ``before``; about 10 MB/s.

    The same as ``csrc/checksum.cpp``.
    """
    table, crc = _table(), ~before & 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return ~crc & 0xFFFFFFFF


@functools.cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)

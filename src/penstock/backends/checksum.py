"""The checksum of blocks of a KV cache, for whoever has no executor."""

from __future__ import annotations

from penstock.backends.cpu import native
from penstock.backends.reference import checksum
from penstock.errors import ConfigError
from penstock.interface.blocks import Bytes


def crc32c(content: Bytes) -> int:
    """CRC-32C of ``content``, contiguous: by native code where there is some, which releases the
    interpreter's lock."""
    try:
        module = native.load()
    except ConfigError:
        return checksum.crc32c(content.tobytes())
    return module.crc32c(content)

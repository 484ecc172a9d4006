"""Where blocks of a KV cache are kept on disk, and how many."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError

_DECIMAL: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


class KvDisk(msgspec.Struct, frozen=True):
    """A directory, and the most bytes of all blocks in it."""

    folder: str
    bytes: int
    key_file: str | None = None
    """The file with the key by which they are encrypted; None: they are not."""

    def __str__(self) -> str:
        return f"{self.folder}:{self.bytes}"

    @classmethod
    def parse(cls, text: str) -> KvDisk:
        """``DIR:SIZE``. Raises ConfigError."""
        folder, colon, size = text.rpartition(":")
        if not colon or not folder:
            raise ConfigError(
                f"kv_disk must be a folder and a size, such as /var/cache/kv:100GB, not {text!r}"
            )
        count = size_of(size)
        if not count:
            raise ConfigError(
                f"the size of kv_disk {text!r} is none: write it as 100GB, 500MiB or 1000000000"
            )
        return cls(str(Path(folder).expanduser().absolute()), count)


class BlockPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine keeps blocks."""

    folder: str
    limit: int
    """Most bytes of all blocks in the directory."""
    kind: str
    """The digest of what its blocks are of, in hexadecimal digits."""


def size_of(text: str) -> int | None:
    """Bytes of ``2GiB`` (binary), ``2GB`` or ``2G`` (decimal), or ``2147483648``; None if it is no
    size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return None
    unit = match[2].upper()
    return int(float(match[1]) * (_BINARY[unit] if match[3] else _DECIMAL[unit]))

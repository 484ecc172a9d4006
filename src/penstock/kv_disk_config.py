"""Where blocks of a KV cache are kept on disk, and how many."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError

_DECIMAL: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(I?)B?", re.I | re.ASCII)
MOST_BYTES: Final = (1 << 63) - 1
"""No file system counts further."""


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
        if count > MOST_BYTES:
            raise ConfigError(f"the size of kv_disk {text!r} is more than any disk has")
        return cls(str(absolute_path("kv_disk", folder)), count)


class BlockPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine keeps blocks."""

    folder: str
    limit: int
    """Most bytes of all blocks in the directory."""
    kind: str
    """The digest of what its blocks are of, in hexadecimal digits."""


def absolute_path(option: str, text: str) -> Path:
    """The path that an option names, which may begin with ``~``. Raises ConfigError."""
    if "\0" in text:
        raise ConfigError(f"{option}: {text!r} has a null byte, and no path has one")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"{option}: {text!r} is in the home of a user whom this system does not know; write "
            "the path itself"
        ) from None


def size_of(text: str) -> int | None:
    """Bytes of ``2GiB`` (binary), ``2GB`` or ``2G`` (decimal), or ``2147483648``; None if it is no
    size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        return None
    unit = match[2].upper()
    return int(Fraction(match[1]) * (_BINARY[unit] if match[3] else _DECIMAL[unit]))

"""A store of blocks whose bytes are known by their numbers."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from penstock.cache.retention import Lru
from penstock.interface.blocks import Bytes
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Name, NewBlock
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.store import KvStore

SIZES = (5000, 3000)
"""Bytes of a block, of two groups of layers."""
DIGEST = bytes(range(16))
CHAIN = 10
"""Blocks of a chain: the first one's number is a multiple of it."""


def opened(
    root: Path,
    limit: int = 1 << 20,
    digest: bytes = DIGEST,
    sizes: Sequence[int] = SIZES,
    now: Callable[[], float] = time.time,
) -> KvStore:
    """A store that takes what was used least recently first, however often."""
    folder = StoreFolder(root, digest, b"{}", limit)
    retention: Lru[Name] = Lru(once_ages=1.0)
    return KvStore(folder, sizes, limit, retention, now)


ABOUT = KindAbout(
    model="model", identity={"penstock": "1", "weights": "abc"}, group_bytes=SIZES, windows=(0, 0)
)


def of_kind(
    root: Path,
    limit: int = 1 << 20,
    about: KindAbout = ABOUT,
    now: Callable[[], float] = time.time,
) -> KvStore:
    """A store whose folder says what its blocks are of."""
    folder = place_of_kind(root, limit, about)
    retention: Lru[Name] = Lru()
    return KvStore(folder, about.group_bytes, limit, retention, now, about.windowed)


def place_of_kind(root: Path, limit: int = 1 << 20, about: KindAbout = ABOUT) -> StoreFolder:
    return StoreFolder(root, about.digest(), msgspec.json.encode(about), limit)


def chain(first: int, count: int) -> list[NewBlock]:
    """A prefix of all groups."""
    return [
        block(n, group)._replace(place=n - first, parent=key(n - 1) if n > first else bytes(16))
        for group in range(len(SIZES))
        for n in range(first, first + count)
    ]


def key(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little", signed=True), digest_size=16).digest()


def block(number: int, group: int = 0, sizes: Sequence[int] = SIZES) -> NewBlock:
    rng = np.random.default_rng([number, group])
    data = rng.integers(0, 256, sizes[group], np.uint8)
    parent = key(number - 1) if number % CHAIN else bytes(16)
    return NewBlock(key(number), parent, group, number, data, checksum(data))


def checksum(data: Bytes) -> int:
    return zlib.crc32(data.tobytes())


def fill(store: KvStore, count: int) -> None:
    """Write blocks, a chain at a time."""
    for first in range(0, count, CHAIN):
        store.write([block(n) for n in range(first, min(first + CHAIN, count))])


def same(store: KvStore, numbers: Sequence[int], group: int = 0) -> bool:
    """Whether all of these blocks are found, and what they were."""
    done, content, _ = store.read([key(number) for number in numbers], group)
    rows = content.data.reshape(done, -1) if done else content.data
    return done == len(numbers) and all(
        (row == block(number, group).data).all() and sum_ == block(number, group).checksum
        for number, row, sum_ in zip(numbers, rows, content.checksums, strict=True)
    )


def total_bytes(root: Path) -> int:
    """Bytes of all segments below a folder."""
    return sum(path.stat().st_size for path in root.rglob("*.kvseg"))

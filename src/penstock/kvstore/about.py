"""What identifies a kind of blocks: all that their bytes depend on, besides tokens."""

from __future__ import annotations

import hashlib

import msgspec

from penstock.cache.geometry import BLOCK_SIZE, Chunk, Window, first_seen_block
from penstock.errors import StoreError
from penstock.kvstore.layout import VERSION


class KindAbout(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a kind of blocks. Its folder is named by the digest, and holds this in JSON."""

    model: str
    """Its name, for people; not part of the digest."""
    identity: dict[str, str | int]
    """Weights, types, kernels and version of the engines that compute such blocks
    (``engine/block_identity.py``)."""
    group_bytes: tuple[int, ...]
    """Bytes of a block of each group of layers, as it is on disk."""
    windows: tuple[int, ...]
    """The attention window of each group: 0 for none (a token sees all before it), ``n`` for a
    sliding window of n tokens, ``-n`` for chunks of n tokens."""
    cipher: str = ""
    """Fingerprint of the key that encrypts the blocks; empty where they are not encrypted."""
    store: int = VERSION

    @classmethod
    def of(
        cls,
        model: str,
        identity: dict[str, str | int],
        group_bytes: tuple[int, ...],
        windows: tuple[Window | None, ...],
        cipher: str = "",
    ) -> KindAbout:
        numbers = tuple(
            0 if each is None else -each.size if isinstance(each, Chunk) else each
            for each in windows
        )
        return cls(
            model=model,
            identity=identity,
            group_bytes=group_bytes,
            windows=numbers,
            cipher=cipher,
        )

    @classmethod
    def decoded(cls, content: bytes) -> KindAbout:
        """Raises StoreError."""
        try:
            about = msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise StoreError(f"the description of its blocks cannot be read: {error}") from None
        if not about.group_bytes or len(about.windows) != len(about.group_bytes):
            raise StoreError("the description of its blocks does not name their groups of layers")
        if min(about.group_bytes) <= 0:
            raise StoreError("its blocks have no bytes")
        return about

    def digest(self) -> bytes:
        nameless = msgspec.json.encode(msgspec.structs.replace(self, model=""))
        return hashlib.blake2b(nameless, digest_size=16).digest()

    @property
    def penstock(self) -> str:
        """The version of the engines."""
        return str(self.identity.get("penstock", ""))

    @property
    def windowed(self) -> list[int]:
        """The groups whose blocks are of use without all those before them."""
        return [group for group, window in enumerate(self.windows) if window]

    def first_seen(self, group: int, count: int) -> int:
        """The first block that a token behind ``count`` blocks sees in a group of layers."""
        number = self.windows[group]
        if number == 0:
            return 0
        window: Window = Chunk(-number) if number < 0 else number
        return min(first_seen_block(window, count * BLOCK_SIZE), count)

    def differences(self, other: KindAbout) -> list[str]:
        """How ``other`` differs, in words."""
        mine, its = self.identity, other.identity
        different = [
            f"{name} {its.get(name)}, not {mine.get(name)}"
            for name in sorted({*mine, *its})
            if mine.get(name) != its.get(name)
        ]
        if self.store != other.store:
            different.append(f"layout {other.store} of files, not {self.store}")
        if self.cipher != other.cipher:
            different.append("encrypted by another key, or only one of both is")
            return different
        if self.group_bytes != other.group_bytes or self.windows != other.windows:
            different.append("other groups of layers")
        return different

"""Blocks that are encrypted on disk: AES-256-GCM, with a key that the operator keeps.

A sealed block is a nonce, the ciphertext, and a tag, :data:`OVERHEAD` bytes more than the block;
the tag is also of the block's key and group, so none passes for another. Entries are not encrypted:
who reads them sees how many blocks there are and when they were used, and can tell whether a prompt
that they guess is among them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cache.prefix import Key
from penstock.errors import ConfigError
from penstock.kvstore.blocks import NewBlock, name_of

OVERHEAD: Final = 28
LEAST_KEY_BYTES: Final = 16
_MOST_KEY_BYTES: Final = 4096
_NONCE_BYTES: Final = 12


class BlockCipher:
    """Seals and opens blocks by one key; any thread."""

    def __init__(self, secret: bytes) -> None:
        """Raises ConfigError where what encrypts is not installed."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(
                "blocks are encrypted by the package cryptography, which is not installed: "
                "pip install 'penstock[encryption]', or leave kv_disk_key_file out"
            ) from None
        self._aead = AESGCM(_derived(secret, b"penstock-kvkey", 32))
        self.fingerprint = _derived(secret, b"penstock-kvname", 8).hex()
        """Tells keys apart, and nothing of the key."""

    @classmethod
    def read(cls, path: Path) -> BlockCipher:
        """The cipher of a key in a file: any bytes, without white space around them. Raises
        ConfigError."""
        try:
            with open(path, "rb") as file:
                secret = file.read(_MOST_KEY_BYTES + 1).strip()
        except OSError as error:
            raise ConfigError(f"kv_disk_key_file {path}: {error.strerror}") from None
        if not LEAST_KEY_BYTES <= len(secret) <= _MOST_KEY_BYTES:
            raise ConfigError(
                f"kv_disk_key_file {path} has {len(secret)} bytes, and a key has at least "
                f"{LEAST_KEY_BYTES}; make one: openssl rand -hex 32 > {path}"
            )
        return cls(secret)

    def seal(self, block: NewBlock) -> NewBlock:
        """The block as it is written; its checksum is that of what is in it."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._aead.encrypt(nonce, block.data.tobytes(), block.name)
        return block._replace(data=np.frombuffer(sealed, np.uint8))

    def opened(self, key: Key, group: int, sealed: NDArray[np.uint8]) -> bytes | None:
        """What is in a block; None if it was sealed by another key, for another block, or is not
        what it was."""
        from cryptography.exceptions import InvalidTag

        content = sealed.tobytes()
        nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        try:
            found: bytes = self._aead.decrypt(nonce, rest, name_of(key, group))
        except InvalidTag:
            return None
        return found


def _derived(secret: bytes, purpose: bytes, size: int) -> bytes:
    return hashlib.blake2b(secret, digest_size=size, person=purpose).digest()

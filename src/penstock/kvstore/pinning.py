"""Pins what an engine computes: its blocks come to disk a little later."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kv_disk_config import BlockPlace
from penstock.kvstore.blocks import Checksum
from penstock.kvstore.directory import kind_folder
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import check_label, pin
from penstock.kvstore.prefixes import Prefix, of_kind

PATIENCE_S: Final = 30.0
"""Longest time that blocks may take to the disk."""
_LOOK_S: Final = 0.2


def pin_computed(
    place: BlockPlace,
    keys: Sequence[Key],
    label: str,
    checksum: Checksum,
    patience_s: float = PATIENCE_S,
) -> Prefix:
    """Pin the prefix of these keys, which an engine has computed, once it is on disk; waits for
    that.

    Raises StoreError where it does not come, where a block is not what its ``checksum`` says, where
    it is too large, and where files cannot be written.
    """
    check_label(label)
    if not keys:
        raise StoreError("the prompt is shorter than a block of 32 tokens; nothing of it is kept")
    root, end = Path(place.folder), time.monotonic() + patience_s
    path = kind_folder(root, bytes.fromhex(place.kind))
    try:
        held = _held(path, keys, end)
        shown = msgspec.json.encode(held.about)
        with contextlib.closing(StoreFolder(root, held.digest, shown, place.limit)) as folder:
            pin(folder, held, keys, label, checksum)
        found = list(of_kind(Holdings(path), [keys[-1]]))
    except OSError as error:
        raise StoreError(
            f"the prefix cannot be kept in {root}: {error.strerror or error}"
        ) from None
    if not found or not found[0].pinned:
        raise StoreError("the prefix was removed as soon as it was pinned")
    return found[0]


def _held(path: Path, keys: Sequence[Key], end: float) -> Holdings:
    """What is on disk, once these keys are among it."""
    while True:
        held = Holdings(path)
        try:
            held.needed(keys)
            return held
        except StoreError as error:
            if time.monotonic() >= end:
                raise StoreError(
                    f"{error}: the engine could not write them, of which its log says more, or "
                    "they made room at once"
                ) from None
        time.sleep(_LOOK_S)

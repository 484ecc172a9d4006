"""Engines with a disk below their cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load_models, open_model, plan_engine
from penstock.interface.messages import TierStats
from penstock.kvstore.layout import SegmentLayout
from support.waiting import PATIENCE_S


@contextmanager
def tiered(config: EngineConfig) -> Iterator[EngineCore]:
    """An engine, whose books are checked before it is closed."""
    files = open_model(config)
    core = EngineCore.of(load_models(plan_engine(config, files), keeping="never", files=files))
    try:
        yield core
        core.check_integrity()
    finally:
        core.close()


def tier(core: EngineCore) -> TierStats:
    stats = core.stats().tier
    assert stats is not None
    return stats


def settle(core: EngineCore) -> None:
    """Step until all blocks are written."""
    deadline = time.monotonic() + PATIENCE_S
    while core.has_work or tier(core).unwritten_bytes:
        assert time.monotonic() < deadline, "blocks are not written"
        core.step()
        time.sleep(0.002)


def keep_up(core: EngineCore) -> None:
    """Wait until the disk has all that it was given, as one that is fast would."""
    assert core._tiers is not None
    deadline = time.monotonic() + PATIENCE_S
    stores = core._tiers._stores
    while any(store.stats().unwritten_bytes for store in stores) and time.monotonic() < deadline:
        time.sleep(0.001)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kvseg"))


def flip(path: Path, offset: int) -> None:
    """Change a bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def flip_block(root: Path, slot: int) -> None:
    """Change a bit of a slot's block in the only segment below ``root``."""
    (path,) = segments(root)
    layout = SegmentLayout.of_head(path.read_bytes()[:4096])
    assert layout is not None
    flip(path, layout.slot_at(slot) + 777)

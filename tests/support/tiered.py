"""Engines with a disk below their cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load_models, open_model, plan_engine
from penstock.interface.messages import EngineRequest, SequenceUpdate, TierStats
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.segment import Segment
from support.bitwise import prompt
from support.handed import Answers, complete, request
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


def of_some(name: str) -> list[EngineRequest]:
    """Requests that share some of their prefixes, and some that may not."""
    shared = prompt(1, 200)
    return [
        request(f"a{name}", shared),
        request(f"b{name}", shared[:150] + prompt(2, 47), temperature=1.0, seed=3),
        request(f"c{name}", prompt(3, 5 * BLOCK_SIZE), n=2, temperature=1.0, seed=4),
        request(f"d{name}", prompt(4, 5 * BLOCK_SIZE + 1), salt="salt"),
        request(f"e{name}", shared, salt="other"),
        request(f"f{name}", prompt(5, 300), max_tokens=40),
    ]


def in_order(answers: Answers) -> list[list[tuple[int, Any]]]:
    """Answers in the order of the requests' names, which may differ otherwise."""
    return [answers[key] for key in sorted(answers)]


def all_updates(core: EngineCore) -> list[SequenceUpdate]:
    """Step to the end of all requests."""
    updates: list[SequenceUpdate] = []
    while core.has_work:
        updates += core.step()
    return updates


def check_damage_is_noticed(
    start: Callable[[], AbstractContextManager[EngineCore]],
    root: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A block of which a bit has flipped on disk is computed again, with what is behind it, told of
    once, and there when the engine starts again."""
    asked = [request("a", prompt(1, 300))]
    with start() as core:
        expected = complete(core, asked)
    flip_block(root, 3)
    for damaged, restored in ((1, 96), (0, 288)):
        with start() as core:
            assert complete(core, asked) == expected
            assert tier(core).damaged_blocks == damaged
            assert caplog.text.count("not what its checksum says") == 1
            assert tier(core).restored_tokens == restored


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


def slow_reads(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every read from disk take longer."""
    read = Segment.read

    def slowly(self: Segment, *args: Any) -> Any:
        time.sleep(seconds)
        return read(self, *args)

    monkeypatch.setattr(Segment, "read", slowly)


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

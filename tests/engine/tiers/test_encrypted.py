"""Blocks that are encrypted on disk are found by their key alone, and only as they were written."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from support.bitwise import prompt
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.needs import Need, lacking, needs_native
from support.tiered import flip, segments, tier, tiered

from penstock.backends.checksum import crc32c
from penstock.engine.loader import plan_engine
from penstock.errors import ConfigError
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.parcel import export, import_prefix
from penstock.kvstore.prefixes import prefixes

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]

if importlib.util.find_spec("cryptography") is None:
    lacking(Need.EXTRA, "encryption")


def keyed(tmp_path: Path, name: str, **options: Any) -> Any:
    """Options of an engine with the key of this name."""
    path = tmp_path / f"{name}.key"
    path.write_text(name * 20 + "\n")
    disk: dict[str, Any] = {"kv_disk": f"{tmp_path / 'kv'}:100MB", "kv_disk_key_file": str(path)}
    return config(tmp_path, **{**disk, **options})


def test_answers_are_those_of_an_engine_without(tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    asked = [request("a", prompt(1, 300)), request("b", prompt(2, 150), temperature=1.0, seed=3)]
    alone = plain(config(tmp_path))
    expected = complete(alone, asked)
    alone.close()
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
        assert tier(core).restored_tokens == 288 + 128
        assert (tier(core).damaged_blocks, tier(core).failures) == (0, 0)


def test_another_key_finds_nothing_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path, LLAMA)
    asked = [request("a", prompt(1, 300))]
    with tiered(keyed(tmp_path, "one")) as core:
        expected = complete(core, asked)
    assert not caplog.records
    for options in (keyed(tmp_path, "two"), config(tmp_path, kv_disk=f"{tmp_path}/kv:100MB")):
        caplog.clear()
        with tiered(options) as core:
            assert complete(core, asked) == expected
            assert tier(core).restored_tokens == 0
        (told,) = (r.message for r in caplog.records if r.name == "penstock.kvstore")
        assert "written with another key, or without one" in told
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
        assert tier(core).restored_tokens == 288


def test_what_is_on_disk_is_not_what_was_computed(tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    found = []
    for name in ("one", ""):
        options = keyed(tmp_path, name) if name else config(tmp_path, kv_disk=f"{tmp_path}/p:1MB")
        with tiered(options) as core:
            complete(core, [request("a", prompt(1, 64))])
            blocks = core.blocks
            assert blocks is not None
            keys = core._scheduler.cache.keyed._index.keys()
            found = [blocks.read([key], 0).data.tobytes()[:64] for key in list(keys)[:2]]
        root = tmp_path / ("kv" if name else "p")
        content = b"".join(path.read_bytes() for path in segments(root))
        assert [each in content for each in found] == [not name] * 2


def test_a_changed_or_exchanged_block_is_not_found(tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    asked = [request("a", prompt(1, 300))]
    with tiered(keyed(tmp_path, "one")) as core:
        expected = complete(core, asked)
    (path,) = segments(tmp_path)
    layout = SegmentLayout.of_head(path.read_bytes()[:4096])
    assert layout is not None
    flip(path, layout.slot_at(3) + 777)
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
        assert tier(core).restored_tokens == 96
        assert tier(core).damaged_blocks == 1
    # It was removed, and computed again.
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
        assert (tier(core).restored_tokens, tier(core).damaged_blocks) == (288, 0)
    # Two blocks in each other's slots, with entries that say what was there.
    fd = os.open(path, os.O_RDWR)
    first, second = (os.pread(fd, layout.slot_bytes, layout.slot_at(slot)) for slot in (1, 2))
    os.pwrite(fd, second, layout.slot_at(1))
    os.pwrite(fd, first, layout.slot_at(2))
    os.close(fd)
    with tiered(keyed(tmp_path, "one")) as core:
        assert complete(core, asked) == expected
        assert tier(core).restored_tokens == 32


def test_a_prefix_moves_encrypted(tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    asked = [request("a", prompt(1, 300))]
    with tiered(keyed(tmp_path, "one")) as core:
        expected = complete(core, asked)
    (prefix,) = prefixes(tmp_path / "kv")
    export(tmp_path / "kv", prefix, tmp_path / "file", crc32c)
    other = f"{tmp_path / 'other'}:100MB"
    import_prefix(tmp_path / "other", 10**8, tmp_path / "file", unseen=True)
    for name, restored in (("one", 288), ("two", 0)):
        with tiered(keyed(tmp_path, name, kv_disk=other)) as core:
            assert complete(core, asked) == expected
            assert tier(core).restored_tokens == restored


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"short", "at least 16"),
        (b"", "at least 16"),
        (b"x" * 5000, "bytes"),
    ],
)
def test_what_is_no_key_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    options = keyed(tmp_path, "one")
    path = tmp_path / "one.key"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=message), tiered(options):
        pass


def test_a_key_without_a_disk_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, LLAMA)
    with pytest.raises(ConfigError, match="which is not given"):
        plan_engine(keyed(tmp_path, "one", kv_disk=None))

"""A disk that is full, gone, or none: the engine serves, and its log says why."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.bitwise import prompt
from support.families import edited
from support.handed import LLAMA, complete, config, folder_of, request
from support.needs import needs_native
from support.tiered import segments, settle, tier, tiered

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import plan_engine
from penstock.engine.tiers import tiers
from penstock.errors import ConfigError

pytestmark = [needs_native, pytest.mark.usefixtures("always_read")]


def test_a_full_disk_keeps_nothing_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = folder_of(tmp_path, LLAMA)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        assert complete(core, [request("a", prompt(1, 300))]) == expected
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert not segments(tmp_path)


def test_the_end_of_an_engine_does_not_wait_for_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing for a minute, and what waits for it is lost."""

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def waited(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(os, "posix_fallocate", full)
    folder = folder_of(tmp_path, LLAMA)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        complete(core, [request("a", prompt(1, 300))])
        settle_failed(core)
        complete(core, [request("b", prompt(2, 300))])
        assert tier(core).unwritten_bytes
        monkeypatch.setattr(tiers, "time", SimpleNamespace(sleep=waited))


def settle_failed(core: EngineCore) -> None:
    """Wait until a write has failed, and nothing else is to be written."""
    assert core._tiers is not None
    (store,) = core._tiers._stores
    end = time.monotonic() + 60
    while not tier(core).failures or store.stats().unwritten_bytes:
        assert time.monotonic() < end, "nothing fails"
        time.sleep(0.005)


def test_a_disk_with_less_room_than_the_size_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate = os.posix_fallocate

    def cramped(fd: int, at: int, length: int) -> None:
        if len(segments(tmp_path)) > 1:  # beside the one that is made
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, at, length)

    folder = folder_of(tmp_path, LLAMA)
    monkeypatch.setattr(os, "posix_fallocate", cramped)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:1MB")) as core:
        for each in range(20):
            complete(core, [request("a", prompt(each, 300))])
            settle(core)
        assert tier(core).evicted_blocks
        assert not tier(core).failures
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "the disk is full before" in told[0]


def test_a_directory_that_cannot_be_used_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("nowhere")
    for place, why in (
        ("file/kv", "Not a directory"),
        ("file", "file is no folder, but a file"),
        ("link", "link is no folder, but a link to nowhere, where none is"),
        ("link/kv", "link is no folder, but a link to nowhere, where none is"),
        ("open", "others can write into"),
    ):
        with tiered(config(folder, kv_disk=f"{tmp_path / place}:100MB")) as core:
            complete(core, [request("a", prompt(1, 100))])
            assert core.stats().tier is None
        assert why in caplog.records[-1].message


def test_a_directory_that_is_removed_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(tmp_path, LLAMA)
    with tiered(config(folder, kv_disk=f"{tmp_path / 'kv'}:100MB")) as core:
        expected = complete(core, [request("a", prompt(1, 300))])
        settle(core)
        shutil.rmtree(tmp_path / "kv")
        end = time.monotonic() + 60
        while tier(core).blocks and time.monotonic() < end:
            time.sleep(0.05)
        assert complete(core, [request("a", prompt(1, 300))]) == expected
        complete(core, [request("b", prompt(2, 300))])
    told = [record.message for record in caplog.records if record.name == "penstock.kvstore"]
    assert len(told) == 1
    assert "was removed" in told[0]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            edited("mamba2", num_hidden_layers=2, time_step_limit=[0.0, 1e9]),
            {},
            "keep a state .* start without --kv-disk",
        ),
        (LLAMA, {"enable_prefix_caching": False}, "leave one of both out"),
        (LLAMA, {"tensor_parallel": 2, "threads": 2}, "several ranks"),
        (LLAMA, {"kv_disk": "/tmp"}, "a folder and a size"),
        (LLAMA, {"kv_disk": "/tmp:lots"}, "write it as 100GB"),
    ],
    ids=["states", "no prefixes", "ranks", "no size", "odd size"],
)
def test_what_cannot_be_had_is_refused(
    model: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"kv_disk": f"{tmp_path}/kv:1GB", "kv_cache_bytes": None, **options}
    with pytest.raises(ConfigError, match=message):
        plan_engine(config(folder_of(tmp_path, model), **given))


def test_a_size_of_less_than_a_block_is_refused(tmp_path: Path) -> None:
    asked: EngineConfig = config(folder_of(tmp_path, LLAMA), kv_disk=f"{tmp_path}/kv:10KB")
    with pytest.raises(ConfigError, match="takes 12,288 bytes"), tiered(asked):
        pass

"""The folder and size of ``--kv-disk`` are what was written, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.kv_disk_config import MOST_BYTES, KvDisk, absolute_path, size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1KB", 1000),
        ("1kib", 1024),
        ("1.5 GiB", 3 << 29),
        ("0.3GB", 300_000_000),
        ("9223372036854775807", MOST_BYTES),
        ("9007199254740993", 9007199254740993),  # which no double is
        ("0", 0),
        ("1e5", None),
        ("-1", None),
        ("1PB", None),
        ("5iB", None),
        ("\u0665GB", None),
        ("9" * 400, None),
        ("", None),
    ],
)
def test_sizes_are_exact(text: str, size: int | None) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv", "a folder and a size"),
        (":1GB", "a folder and a size"),
        ("kv:0", "write it as 100GB"),
        ("kv:0.4", "write it as 100GB"),
        ("kv:" + "9" * 400, "write it as 100GB"),
        ("kv:9223372036854775808", "more than any disk has"),
        ("kv:99999999999TB", "more than any disk has"),
        ("~nobody-of-this-name/kv:1GB", "write the path itself"),
        ("k\0v:1GB", "null byte"),
    ],
)
def test_what_is_no_folder_and_size_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KvDisk.parse(text)


def test_folders_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/one")
    assert KvDisk.parse("a b/ü:5GB") == KvDisk(f"{tmp_path}/a b/ü", 5 * 10**9)
    assert KvDisk.parse("a:b:5GB").folder == f"{tmp_path}/a:b"
    assert absolute_path("kv_disk", "~/kv") == Path("/home/one/kv")

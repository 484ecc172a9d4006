"""A file is there in full or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.convert import new_file as module
from penstock.convert.new_file import WriteError, new_file
from penstock.errors import ConfigError


def test_a_file_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with new_file(path, 100, replace=False) as file:
        assert not path.exists()
        file.write(b"xyz", 50)
    assert path.read_bytes() == bytes(50) + b"xyz" + bytes(47)
    assert os.listdir(tmp_path) == ["a.gguf"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~module._umask()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_of_work_that_fails(kind: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_text("before")

    def work() -> None:
        with new_file(path, 10, replace=True) as file:
            file.write(b"new", 0)
            raise kind

    with pytest.raises(kind):
        work()
    assert os.listdir(tmp_path) == ["a.gguf"]
    assert path.read_text() == "before"


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_text("before")
    with pytest.raises(ConfigError, match="--force"), new_file(path, 3, replace=False):
        pytest.fail("it began")
    with new_file(path, 3, replace=True) as file:
        file.write(b"new", 0)
    assert path.read_text() == "new"
    other = tmp_path / "b.gguf"
    with pytest.raises(ConfigError, match="--force"), new_file(other, 3, replace=False):
        other.write_text("meanwhile")
    assert other.read_text() == "meanwhile"
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "b.gguf"]


def test_a_name_that_is_taken_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other file appears between the last look and the naming."""
    path, link = tmp_path / "a.gguf", os.link

    def late(source: str, target: Path) -> None:
        path.write_text("meanwhile")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ConfigError, match="--force"), new_file(path, 3, replace=False):
        pass
    assert path.read_text() == "meanwhile"
    assert os.listdir(tmp_path) == ["a.gguf"]


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    with new_file(tmp_path / "a.gguf", 3, replace=False) as file:
        file.write(b"new", 0)
    assert os.listdir(tmp_path) == ["a.gguf"]
    assert (tmp_path / "a.gguf").read_bytes() == b"new"


def test_what_the_source_refuses_is_not_said_of_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="the source") as raised,
        new_file(tmp_path / "a.gguf", 3, replace=False),
    ):
        raise OSError(errno.EIO, "the source")
    assert not isinstance(raised.value, WriteError)
    assert os.listdir(tmp_path) == []


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"), new_file(tmp_path, 3, replace=True):
        pass
    with (
        pytest.raises(ConfigError, match="no folder"),
        new_file(tmp_path / "x" / "a.gguf", 3, replace=True),
    ):
        pass


def test_a_full_disk_says_how_much_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(WriteError, match=r"no room for its 12,345,678 bytes"),
        new_file(tmp_path / "a.gguf", 12_345_678, replace=False),
    ):
        pytest.fail("it began")
    assert os.listdir(tmp_path) == []

"""What was measured is known to the next engine, and nothing that was not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.kvstore.directory import kind_folder, remove_empty
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.rates import RATES, Rates, read_rates, write_rates

MEASURED = Rates(threads=2, bandwidth=1.5e9, rate=170.25)


def test_what_was_measured_is_read(tmp_path: Path) -> None:
    assert read_rates(tmp_path, 2) == Rates(threads=2)
    write_rates(tmp_path, MEASURED)
    assert read_rates(tmp_path, 2) == MEASURED
    assert read_rates(tmp_path, 3) == Rates(threads=3)
    half = Rates(threads=2, rate=10.0)
    write_rates(tmp_path, half)
    assert read_rates(tmp_path, 2) == half
    assert [path.name for path in tmp_path.iterdir()] == [RATES]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"threads":2,"bandwidth":0,"rate":5,"version":1}',
        b'{"threads":2,"bandwidth":-1,"rate":5,"version":1}',
        b'{"threads":2,"bandwidth":1e999,"rate":5,"version":1}',
        b'{"threads":2,"bandwidth":"fast","rate":5,"version":1}',
        b'{"threads":2,"bandwidth":5,"rate":5,"version":2}',
        b'{"threads":2,"bandwidth":5,' + b" " * 5000 + b'"rate":5,"version":1}',
        b"\xff\xfe",
    ],
)
def test_what_is_none_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / RATES).write_bytes(content)
    assert read_rates(tmp_path, 2) == Rates(threads=2)


def test_another_thing_of_its_name_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RATES)
    assert read_rates(tmp_path, 2) == Rates(threads=2)
    (tmp_path / RATES).unlink()
    (tmp_path / "other").write_bytes(b'{"threads":2,"bandwidth":5.0}')
    (tmp_path / RATES).symlink_to("other")
    assert read_rates(tmp_path, 2) == Rates(threads=2)


def test_a_folder_with_rates_alone_is_removed(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path, bytes(16), b"{}", 1000)
    write_rates(folder.path, MEASURED)
    folder.close()
    remove_empty(tmp_path, bytes(16))
    assert not kind_folder(tmp_path, bytes(16)).exists()

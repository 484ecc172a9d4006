"""The folder of files and batches: one server uses it at a time, and every document is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batch_files import kept

from penstock.errors import ConfigError
from penstock.server.openai.batches.store import BatchStore, LineFile


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"torn" * 700_000)
    for turn in range(2):
        file = LineFile(path)
        assert list(file.lines()) == [b"x" * 1_500_000, b"", b"y"][: 3 * turn]
        if not turn:
            for text in (b"x" * 1_500_000, b"", b"y"):
                file.add(text)
        file.close()


def test_a_folder_has_one_user_and_whole_documents(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    with pytest.raises(ConfigError, match="in use by another server"):
        BatchStore(tmp_path)
    kept(store, b"x")
    (tmp_path / "files" / "file-orphan.data").write_bytes(b"of an upload that was cut short")
    store.close()
    again = BatchStore(tmp_path)
    assert list(again.files) == ["file-in"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "file-in.data",
        "file-in.json",
    ]
    again.delete_file("file-in")
    assert list((tmp_path / "files").iterdir()) == []
    again.close()
    (tmp_path / "batches" / "b.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        BatchStore(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--batch-dir"):
        BatchStore(tmp_path / "file")

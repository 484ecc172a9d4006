"""Servers of single tests, whose engine is to be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import byte_tokenizer
from support.http_client import Server, running
from support.switches import CONTEXT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer's folder; a file that is put there makes the next engine wait (``fake_core``)."""
    return byte_tokenizer.write(tmp_path / "tokenizer")


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """A server whose engine may be replaced; a step takes 10 ms."""
    with running(folder, 10, max_model_len=CONTEXT) as server:
        yield server

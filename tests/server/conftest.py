"""Servers for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import byte_tokenizer
import pytest
from http_client import Server, running


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def server(tokenizer_folder: Path) -> Iterator[Server]:
    """One server for tests that leave it as it was; a step takes 1 ms."""
    with running(tokenizer_folder, 1) as server:
        yield server


@pytest.fixture(scope="session")
def slow_server(tokenizer_folder: Path) -> Iterator[Server]:
    """A second one for all, where a step takes 10 ms."""
    with running(tokenizer_folder, 10) as server:
        yield server


@pytest.fixture
def fresh_server(tokenizer_folder: Path) -> Iterator[Server]:
    """A server of its own for a test that harms it; a step takes 10 ms."""
    with running(tokenizer_folder, 10) as server:
        yield server

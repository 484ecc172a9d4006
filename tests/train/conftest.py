"""Tiny targets, and one thread: the suite runs beside other work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_checkpoint

from penstock.train.target import Target


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder() -> Path:
    """A target of five layers, so that EAGLE 3 has an early, a middle and a late one."""
    return tiny_checkpoint(num_hidden_layers=5)


@pytest.fixture(scope="session")
def target(folder: Path) -> Target:
    return Target(folder)

"""Weights are read one ahead of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.backends.fills import Fill, fill_all


class Source:
    def __init__(self) -> None:
        self.read: list[str] = []

    def names(self) -> Any:
        return ["a", "b", "c"]

    def get(self, name: str) -> np.ndarray:
        self.read.append(name)
        if name == "c":
            raise OSError("disk")
        return np.full(2, ord(name))


class Stack:
    def member(self, name: str, index: int) -> np.ndarray:
        return np.full(2, 10 * ord(name) + index)


def test_a_stack_is_read_expert_by_expert() -> None:
    got: list[int] = []
    fills = [Fill("a", lambda array: got.append(int(array[0])), expert) for expert in (2, 0, 1)]
    fill_all(fills, Stack())  # type: ignore[arg-type]
    assert got == [972, 970, 971]


def test_fills_run_in_order_and_errors_come_through() -> None:
    source, got = Source(), []
    fills = [
        Fill(name, lambda array, name=name: got.append((name, int(array[0])))) for name in "abab"
    ]
    fill_all(fills, source)
    assert got == [("a", 97), ("b", 98), ("a", 97), ("b", 98)]
    assert source.read == list("abab")
    with pytest.raises(OSError, match="disk"):
        fill_all([Fill("a", got.append), Fill("c", got.append)], source)

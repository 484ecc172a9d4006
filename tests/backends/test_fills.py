"""Weights are read one ahead of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.backends import fills
from penstock.backends.fills import ByRows, Fill, fill_all


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


class Rows:
    """Matrices ``[40, 4]``, of which one can be read by rows."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def has_rows_apart(self, name: str) -> bool:
        return name == "apart"

    def rows(self, name: str, first: int, end: int) -> np.ndarray:
        self.read.append((first, end))
        return np.arange(160).reshape(40, 4)[first:end]

    def get(self, name: str) -> np.ndarray:
        self.read.append(name)
        return np.arange(160).reshape(40, 4)

    def member(self, name: str, index: int) -> np.ndarray:
        raise AssertionError

    def names(self) -> Any:
        return ["apart", "whole"]


def test_a_large_matrix_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fills, "_PIECE", 100)
    source, put = Rows(), np.zeros((40, 4))

    def by_rows(value: Any, first: int) -> None:
        put[first : first + len(value)] += value

    fill_all([Fill(name, ByRows(40, 4, by_rows)) for name in ("apart", "whole")], source)
    assert source.read == [(0, 16), (16, 32), (32, 40), "whole"]
    np.testing.assert_array_equal(put, 2 * np.arange(160).reshape(40, 4))
    source.read.clear()
    fill_all([Fill("apart", lambda array: None), Fill("apart", ByRows(5, 4, by_rows))], source)
    assert source.read == ["apart", "apart"]  # what takes it whole, and what is small

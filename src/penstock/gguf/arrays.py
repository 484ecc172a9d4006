"""Arrays of GGUF metadata: numbers and strings, in about the bytes that they take in a file."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class _Array(Sequence[T]):
    """What both kinds of arrays have of a list."""

    def __eq__(self, other: object) -> bool:
        """Equal to a sequence of the same elements."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """As a list has it, of the first ones where there are many: messages show it."""
        shown = ", ".join(map(repr, self[:8]))
        return f"[{shown}, ...]" if len(self) > 8 else f"[{shown}]"


class Numbers(_Array[bool | int | float]):
    """An array of numbers or bools, in as many bytes as it takes in the file."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    @property
    def array(self) -> NDArray[Any]:
        """The values as the file has them; nobody may change them."""
        return self._values

    @property
    def kind(self) -> type[bool] | type[int] | type[float]:
        """The Python type of the values."""
        return {"b": bool, "f": float}.get(self._values.dtype.kind, int)

    def unlike(self, usual: int) -> list[tuple[int, int]]:
        """The positions of numbers other than ``usual``, and these as integers."""
        (found,) = np.nonzero(self._values != usual)
        return list(zip(found.tolist(), map(int, self._values[found].tolist()), strict=True))

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[bool | int | float]:
        return iter(self._values.tolist())

    @overload
    def __getitem__(self, index: int) -> bool | int | float: ...
    @overload
    def __getitem__(self, index: slice) -> list[bool | int | float]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._values[index].tolist()


class Strings(_Array[str]):
    """An array of many strings, as UTF-8 until they are asked for: a file is opened by several that
    do not look at its vocabulary."""

    def __init__(self, text: bytes, ends: NDArray[np.int64]) -> None:
        """``ends`` are where each string ends in ``text``, which is all of them joined."""
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        raw = [value.encode() for value in values]
        return cls(b"".join(raw), np.cumsum([len(each) for each in raw], dtype=np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of bytes of each."""
        return np.diff(self.ends, prepend=0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of characters of each."""
        starts_one = np.frombuffer(self.text, np.uint8) & 0xC0 != 0x80
        up_to = np.concatenate([np.zeros(1, np.int64), np.cumsum(starts_one)])
        return np.diff(up_to[self.ends], prepend=0)

    def positions(self, names: Iterable[str]) -> dict[str, int]:
        """Where those of ``names`` that occur stand, of one that does so twice the last."""
        sizes, octets = self.sizes, np.frombuffer(self.text + b"\0", np.uint8)
        starts = self.ends - sizes
        # Most strings differ from all of them in this: the size, and the first byte.
        marks = sizes << 8 | np.where(sizes > 0, octets[starts], 0)
        by_mark: dict[int, dict[bytes, str]] = {}
        for name in names:
            raw = name.encode()
            by_mark.setdefault(len(raw) << 8 | (raw[0] if raw else 0), {})[raw] = name
        found: dict[str, int] = {}
        for mark, wanted in by_mark.items():
            (at,) = np.nonzero(marks == mark)
            rows = octets[starts[at][:, None] + np.arange(mark >> 8)]
            for raw, name in wanted.items():
                same = at[(rows == np.frombuffer(raw, np.uint8)).all(axis=1)]
                if len(same):
                    found[name] = int(same[-1])
        return found

    def take(self, positions: Sequence[int]) -> list[str]:
        """The strings there."""
        at = np.asarray(positions, np.int64)
        ends = self.ends[at]
        starts = ends - self.sizes[at]
        return [
            self.text[start:end].decode()
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        text, start = self.text, 0
        for end in self.ends.tolist():
            yield text[start:end].decode()
            start = end

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        at = range(len(self))[index]
        return self.text[self.ends[at - 1] if at else 0 : self.ends[at]].decode()

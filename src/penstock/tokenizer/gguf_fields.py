"""Typed access to a GGUF file's ``tokenizer.ggml.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TokenizerError
from penstock.gguf.arrays import Numbers, Strings
from penstock.gguf.metadata import GgufValue

_T = TypeVar("_T", bool, int, float, str)


class Fields:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, metadata: Mapping[str, GgufValue]) -> None:
        self._metadata = metadata

    def has(self, name: str) -> bool:
        return "tokenizer.ggml." + name in self._metadata

    def scalar(self, name: str, kind: type[_T], default: _T) -> _T:
        value = self._metadata.get("tokenizer.ggml." + name, default)
        if type(value) is not kind:
            raise TokenizerError(
                f"tokenizer.ggml.{name} is {value!r:.100}, not of type {kind.__name__}"
            )
        return value

    def strings(self, name: str) -> Strings:
        """Empty if absent. Raises TokenizerError unless what is there are strings."""
        values = self._metadata.get("tokenizer.ggml." + name, [])
        if isinstance(values, Strings):
            return values
        # An array of GGUF has elements of one type, so one stands for all.
        if not isinstance(values, list) or (values and type(values[0]) is not str):
            raise TokenizerError(f"tokenizer.ggml.{name} is not an array of str")
        listed: list[Any] = values
        return Strings.of(listed)

    def numbers(
        self, name: str, kind: type[int] | type[float], size: int, usual: float
    ) -> NDArray[Any]:
        """``size`` times ``usual`` if absent. Raises TokenizerError unless what is there are
        ``size`` values of ``kind``."""
        if not self.has(name):
            return np.full(size, usual)
        values = self._metadata["tokenizer.ggml." + name]
        if isinstance(values, list) and all(type(each) is kind for each in values):
            values = Numbers(np.array(values, np.dtype(kind)))
        if not isinstance(values, Numbers) or (values and values.kind is not kind):
            raise TokenizerError(f"tokenizer.ggml.{name} is not an array of {kind.__name__}")
        if len(values) != size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {size} tokens"
            )
        return values.array

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """A field that names a token; None if absent. Raises TokenizerError if no such token is."""
        value = self.scalar(name, int, -1)
        if value >= vocab_size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} is {value}, outside the vocabulary of {vocab_size}"
            )
        return value if value >= 0 else None

"""Typed access to a GGUF file's ``tokenizer.ggml.*``."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.errors import TokenizerError
from penstock.gguf.metadata import GgufValue, Numbers, Strings

_T = TypeVar("_T", bool, int, float, str)


class Fields:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, metadata: dict[str, GgufValue]) -> None:
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

    def array(self, name: str, kind: type[_T], size: int | None = None) -> list[_T]:
        """Empty if absent. Raises TokenizerError unless what is there are ``size`` values of
        ``kind``."""
        values = self._metadata.get("tokenizer.ggml." + name, [])
        if isinstance(values, Numbers):
            right = values.kind is kind or not values
        elif isinstance(values, Strings):
            right = kind is str
        else:
            # An array of GGUF has elements of one type, so one stands for all.
            right = isinstance(values, list) and (not values or type(values[0]) is kind)
        if not right:
            raise TokenizerError(f"tokenizer.ggml.{name} is not an array of {kind.__name__}")
        assert isinstance(values, (list, Numbers, Strings))
        if self.has(name) and size is not None and len(values) != size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {size} tokens"
            )
        listed: list[Any] = list(values)
        return listed

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """A field that names a token; None if absent. Raises TokenizerError if no such token is."""
        value = self.scalar(name, int, -1)
        if value >= vocab_size:
            raise TokenizerError(
                f"tokenizer.ggml.{name} is {value}, outside the vocabulary of {vocab_size}"
            )
        return value if value >= 0 else None

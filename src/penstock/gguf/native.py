"""Native code for vocabularies (``csrc/vocabulary``), where it was built.

All that it does can be done without it, in many times the time: strings are read one by one, and
texts are cut into tokens by the ``tokenizers`` library.
"""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Sequence
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray


class BytePairs(Protocol):
    """A vocabulary of byte pairs; ``csrc/vocabulary/byte_pairs.h`` says which token ids a text has.

    Immutable; threads may share it.
    """

    @staticmethod
    def by_merges(
        text: bytes,
        ends: NDArray[np.int64],
        merges: bytes,
        merge_ends: NDArray[np.int64],
        spelled_bytes: bool,
        whole_words_first: bool,
    ) -> BytePairs:
        """A vocabulary of entries, and merges in their order. ``text`` has all of them, one after
        another, and ``ends`` where each ends. Raises ValueError for entries that are not distinct
        or merges that are no pairs of them."""
        ...

    @staticmethod
    def by_rank(
        text: bytes,
        ends: NDArray[np.int64],
        ranks: NDArray[np.int32],
        unknown: int,
        space_first: bool,
    ) -> BytePairs:
        """A vocabulary of entries that merge in the order of their ranks; -1: of one that does not,
        and of ``unknown`` where no entry stands for what is none."""
        ...

    def __len__(self) -> int: ...

    @property
    def most_bytes(self) -> int:
        """Those of the longest entry."""
        ...

    @property
    def most_chars(self) -> int: ...

    def entry(self, token: int) -> str | None: ...

    def find(self, text: str) -> int | None: ...

    def encode(
        self,
        text: str,
        kinds: Sequence[int],
        offsets: Sequence[tuple[int, int]],
        tokens: NDArray[np.int32],
    ) -> list[int]:
        """Tokens of a text that is cut into words: of each word its kind, and where it begins and
        ends, in characters. Of a kind all words are that one of ``tokens``, or, where it is -1,
        put together from entries."""
        ...


class NativeVocabulary(Protocol):
    """The module."""

    BytePairs: type[BytePairs]

    def read_strings(
        self, data: bytes | mmap.mmap, at: int, end: int, count: int
    ) -> tuple[bytes, bytes, int] | None:
        """Strings that follow their sizes, from offset ``at`` of ``data`` on and before ``end``:
        all of them one behind the other, where each ends in that, as int64, and the offset behind
        them. None where that is not what is there, or where one begins within a character."""
        ...


def _load() -> NativeVocabulary | None:
    try:
        return cast(NativeVocabulary, importlib.import_module("penstock.gguf._vocabulary"))
    except ImportError:
        return None


native: Final = _load()
"""The module; None where it was not built."""

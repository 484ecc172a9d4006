"""What a tokenizer is made of: a vocabulary, and how texts are cut into its entries."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from penstock.tokenizer.length_bound import LengthBound
from penstock.tokenizer.pieces import Entries, read_rule


class Codec(Entries, Protocol):
    """A vocabulary, and how texts are cut into its tokens. Immutable, as far as its users see."""

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        ...

    def size_without(self, left_out: Mapping[int, object]) -> int:
        """One more than the largest id of an entry of the vocabulary itself that is not left out;
        0 where there is none."""
        ...

    def token_id(self, entry: str) -> int | None:
        """The token of this entry; None where there is none."""
        ...

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        """The token ids of each text, which is valid Unicode. With ``parse_special=False`` names of
        special tokens in them are ordinary text. Other threads may run meanwhile."""
        ...

    def length_bound(self) -> LengthBound | None:
        """The most text that one token can hold; None where that is not certain."""
        ...


class LibraryCodec:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, library: Library) -> None:
        # A length limit or padding saved with the tokenizer would cut prompts silently.
        library.no_truncation()
        library.no_padding()
        decoder = library.decoder
        # Its saved state is its entry in tokenizer.json.
        state = None if decoder is None else msgspec.json.decode(decoder.__getstate__())
        self.rule = read_rule(state)
        self.added: Mapping[int, AddedToken] = library.get_added_tokens_decoder()
        self.size: int = max([library.get_vocab_size(), *(i + 1 for i in self.added)])
        self._library = library
        self._lock = threading.Lock()

    @property
    def library(self) -> Library:
        """The library's tokenizer, which nobody may change."""
        return self._library

    def size_without(self, left_out: Mapping[int, object]) -> int:
        own: Mapping[str, int] = self._library.get_vocab(with_added_tokens=False)
        return max((i + 1 for i in own.values() if i not in left_out), default=0)

    def entry(self, token_id: int) -> str | None:
        found: str | None = self._library.id_to_token(token_id)
        return found

    def token_id(self, entry: str) -> int | None:
        found: int | None = self._library.token_to_id(entry)
        return found

    def encode(self, texts: Sequence[str], parse_special: bool) -> list[list[int]]:
        library = self._library
        # The library keeps this choice as state of the tokenizer. A second tokenizer for the other
        # choice would take as long to make as the first (1 s for 150,000 tokens), and its memory.
        with self._lock:
            if library.encode_special_tokens is parse_special:
                library.encode_special_tokens = not parse_special
            # Unlike encode(), the batch call lets other threads run, and without character offsets
            # it takes 0.6 of the time.
            encodings = library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [each.ids for each in encodings]

    def length_bound(self) -> LengthBound | None:
        return LengthBound.read(self._library)

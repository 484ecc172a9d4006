"""Tokens to text, as they come."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from penstock.tokenizer.pieces import Pieces

_UTF8 = codecs.getincrementaldecoder("utf-8")
_LONGEST_TAIL = 3  # bytes of an unfinished UTF-8 sequence


class IncrementalDetokenizer:
    """Turns the tokens of one sequence into text; each token costs its own length.

    Text comes out when it is certain: the bytes of a character that is split over tokens wait
    for its last token. U+FFFD stands for bytes that can never become a character, as Unicode
    recommends (one per maximal subpart), and for an unfinished character at the end.

    ``skip_ids`` produce no text (special tokens). After a prompt (``prompt_token_ids``), the text
    is a continuation: it keeps the leading space that the text of a whole document drops, and
    completes a character that the prompt left unfinished.
    """

    def __init__(
        self,
        pieces: Pieces,
        skip_ids: Collection[int] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._pieces = pieces
        self._skip = skip_ids
        self._decoder = _UTF8(errors="replace")
        self._at_start = True  # of a text whose first space may have to go
        self._prime(prompt_token_ids)

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete, possibly none."""
        pieces, skip = self._pieces, self._skip
        if self._at_start:
            return "".join([self._push_first(token) for token in token_ids])
        text = b"".join([pieces[token] for token in token_ids if token not in skip])
        if text.isascii() and not self._decoder.getstate()[0]:
            return text.decode("ascii")  # most text: no state to keep, a third of the time
        return self._decoder.decode(text)

    def flush(self) -> str:
        """The rest, after the last token: U+FFFD if it ended inside a character."""
        return self._decoder.decode(b"", final=True)

    def _push_first(self, token: int) -> str:
        if token in self._skip:
            return ""
        piece = self._pieces[token]
        if self._at_start and piece:
            self._at_start = False
            piece = self._pieces.first(token)
        return self._decoder.decode(piece)

    def _prime(self, prompt: Sequence[int]) -> None:
        tail = b""
        for token in reversed(prompt):
            if token in self._skip or not self._pieces[token]:
                continue
            self._at_start = False
            tail = self._pieces[token] + tail
            if len(tail) >= _LONGEST_TAIL:
                break
        # Cut to the last possible sequence start, so that what is before cannot leave a state.
        tail = tail[-_LONGEST_TAIL:]
        for start in range(len(tail)):
            if tail[start] >= 0xC0:
                self._decoder.decode(tail[start:])
                return

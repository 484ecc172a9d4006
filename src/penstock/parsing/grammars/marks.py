"""How a grammar names what a tokenizer may have as one token."""

from __future__ import annotations

import json
import re

from penstock.tokenizer import Tokenizer


class Marks:
    """Spells marks as the tokens of a model. Special tokens are no text: none of a grammar's
    patterns matches one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def are_tokens(self, *marks: str) -> bool:
        return all(self._tokenizer.token_id(mark) in self._tokenizer.special_ids for mark in marks)

    def known(self, *marks: str) -> bool:
        """Whether the vocabulary has each as one token."""
        return all(self._tokenizer.token_id(mark) is not None for mark in marks)

    def spelled(self, *pieces: str) -> str:
        """One after the other; what is text is one string, without what is empty. A piece that is
        a token may have space around it."""
        parts: list[str] = []
        text = ""
        for piece in pieces:
            mark = piece.strip()
            if not self.are_tokens(mark):
                text += piece
                continue
            before, after = piece.split(mark)
            parts += self._text(text + before)
            parts.append(f"<[{self._tokenizer.token_id(mark)}]>")
            text = after
        return " ".join([*parts, *self._text(text)])

    def _text(self, text: str) -> list[str]:
        return [json.dumps(text)] if text else []


def quoted(text: str) -> str:
    """A pattern between slashes that matches ``text`` alone."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")

"""A text that every engine reads, for what its weights are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import TokenizerError
from penstock.evaluate.text_model import encode_text
from penstock.evaluate.windows import cut
from penstock.tokenizer.load import load_tokenizer

WINDOW: Final = 512
"""Tokens of a window: what llama.cpp's perplexity tool takes by default."""


@dataclass(frozen=True)
class Text:
    """Windows of a text, cut as llama.cpp's perplexity tool cuts them: the second half counts."""

    name: str
    windows: list[list[int]]
    first: int
    """The place of a window's first token that counts."""

    @classmethod
    def read(cls, path: Path, model: Path, most: int) -> Text:
        """The first windows of a text, at most ``most``, in tokens of ``model``.

        Raises OSError, ConfigError for a text that is too short, or TokenizerError.
        """
        tokenizer = load_tokenizer(model)
        try:
            tokens, bos = encode_text(tokenizer, path.read_bytes().decode())
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path} is no text in UTF-8: {error}") from None
        windows = cut(tokens, WINDOW, "llama.cpp", bos)[:most]
        return cls(path.name, [list(each.token_ids) for each in windows], windows[0].first)

    def perplexity(self, loss: float) -> float:
        """What tokens have lost ``loss`` nats in all."""
        return math.exp(loss / sum(len(window) - self.first for window in self.windows))

    def __str__(self) -> str:
        return f"{len(self.windows)} windows of {WINDOW} tokens of {self.name}"

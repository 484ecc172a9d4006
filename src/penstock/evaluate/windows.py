"""Cuts a text into windows, each of which a model reads from an empty context.

Perplexities compare only where windows are cut alike, so both ways in use are here by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.errors import ConfigError

WindowMethod = Literal["llama.cpp", "gptq"]
"""How windows are cut and which of their tokens count.

llama.cpp: as llama.cpp's perplexity tool does. The second half of each window counts, without its
first token, and a model that expects BOS gets it in the place of each window's first token.

gptq: as the code of GPTQ's paper does, and most papers since. Every token counts but the first of
each window; BOS, if the model expects it, stands before the text alone.

Both read the text as one row of tokens, cut it into windows that do not overlap, and leave out what
remains behind the last whole one.
"""
WINDOW_METHODS: Final[tuple[str, ...]] = get_args(WindowMethod)


@dataclass(frozen=True)
class Window:
    """Tokens that are read together."""

    token_ids: Sequence[int]
    first: int
    """The first of them that counts, at least 1: nothing predicts the first."""

    @property
    def targets(self) -> Sequence[int]:
        """The tokens that count."""
        return self.token_ids[self.first :]


OnWindow = Callable[[int, float], None]
"""Is told how many windows are done, and the figure up to there."""


def cut(token_ids: Sequence[int], size: int, method: WindowMethod, bos: int | None) -> list[Window]:
    """The windows of ``size`` tokens of a text.

    ``token_ids`` is the text with the special tokens that the model expects; ``bos`` is the one
    that it expects first, None if it expects none. Raises ConfigError if the text is shorter than a
    window, or a window too short to have a token that counts.
    """
    first = 1 if method == "gptq" else size // 2 + 1
    if size <= first:
        least = 2 if method == "gptq" else 3
        raise ConfigError(f"a window of {size} tokens has none that counts; take at least {least}")
    if len(token_ids) < size:
        raise ConfigError(
            f"the text has {len(token_ids)} tokens, less than a window of {size}; "
            "give a longer text or a smaller --window"
        )
    windows = []
    for start in range(0, len(token_ids) - size + 1, size):
        tokens = list(token_ids[start : start + size])
        if method == "llama.cpp" and bos is not None:
            tokens[0] = bos
        windows.append(Window(tokens, first))
    return windows

"""What is said of an answer that was cut."""

from __future__ import annotations

import pytest

from penstock.chat.chat_model import Usage
from penstock.chat.cut import why_cut

FULL, LIMIT = "cut: the context of 1,000 tokens is full; /clear empties it", "cut: max_tokens 50 is"


@pytest.mark.parametrize(
    ("usage", "max_tokens", "context_tokens", "words"),
    [
        (Usage(950, 50), None, 1000, FULL),
        (Usage(950, 50), 50, 1000, FULL),
        (Usage(949, 50), 50, 1000, LIMIT),
        (Usage(949, 50), None, 1000, "cut: the server's limit is used up"),
        (Usage(949, 50), 50, None, LIMIT),
        (Usage(949, 40), 50, None, "max_tokens is used up, or the context is full"),
        (Usage(949, 50), None, None, "max_tokens is used up, or the context is full"),
        (None, 50, 1000, "max_tokens is used up, or the context is full"),
    ],
)
def test_which_limit_it_was(
    usage: Usage | None, max_tokens: int | None, context_tokens: int | None, words: str
) -> None:
    assert words in why_cut(usage, max_tokens, context_tokens)

"""Why an answer was cut off."""

from __future__ import annotations

from penstock.chat.chat_model import Usage


def why_cut(usage: Usage | None, max_tokens: int | None, context_tokens: int | None) -> str:
    """Which of the two has ended an answer with ``finish_reason`` ``length``.

    ``max_tokens`` is what was asked for, and ``context_tokens`` what prompt and answer fit in; each
    is None where it is not known, and so is ``usage``.
    """
    if usage is not None and context_tokens is not None:
        if usage.prompt_tokens + usage.completion_tokens >= context_tokens:
            return f"cut: the context of {context_tokens:,} tokens is full; /clear empties it"
        limit = "the server's limit" if max_tokens is None else f"max_tokens {max_tokens:,}"
        return f"cut: {limit} is used up"
    if usage is not None and max_tokens is not None and usage.completion_tokens >= max_tokens:
        return f"cut: max_tokens {max_tokens:,} is used up"
    return "cut: max_tokens is used up, or the context is full, which /clear empties"

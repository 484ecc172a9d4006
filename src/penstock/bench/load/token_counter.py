"""Counts tokens by a tokenizer of the user's."""

from __future__ import annotations

from collections.abc import Callable


def token_counter(source: str) -> Callable[[str], int]:
    """Counts the tokens of a text, by the tokenizer of a folder, a GGUF file or a hub id, without
    those that stand around a prompt. Raises TokenizerError and ModelError."""
    from penstock.tokenizer import load_tokenizer
    from penstock.weights.hub import resolve_tokenizer

    tokenizer = load_tokenizer(resolve_tokenizer(source), check_templates=False)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))

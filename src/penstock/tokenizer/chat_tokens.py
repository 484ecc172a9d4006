"""Turns messages and a chat template into token ids.

A special token's name inside a message is text, not a token: what a user writes cannot end their
turn or open another's. Templates are programs that may inspect and trim the text, so the names
are replaced by stand-ins while the template runs, and put back as text when its result is
tokenized.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import RequestError
from penstock.tokenizer.tokenizer import Tokenizer

_PRIVATE_USE = ("\U000f0000", "\U000ffffe")
"""Unicode's plane 15, first and past the last: 65 thousand characters that mean nothing."""


def tokenize_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    chat_template_kwargs: dict[str, Any],
    add_special_tokens: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    check: Callable[[str], None] = lambda text: None,
    continue_final_message: bool = False,
    encode: Callable[[str], list[int]] | None = None,
) -> list[int]:
    """Render and tokenize, with special tokens in the messages and tools as text.

    Where no message names a special token this is exactly ``encode(apply_chat_template())``.
    Otherwise the stretches between special tokens that hold such names are tokenized apart.
    ``check`` is given the text before it is tokenized, and may refuse it.
    ``continue_final_message`` is that of :meth:`Tokenizer.apply_chat_template`. ``encode`` stands
    in for the tokenizer where no message names a special token.
    """
    special = special_names(tokenizer)
    shield = None if special is None else _Shield(special, list(_texts([*messages, *tools])))
    if special is None or shield is None or not shield.needed:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt,
            list(tools) or None,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        check(text)
        return tokenizer.encode(text, add_special_tokens) if encode is None else encode(text)
    text = tokenizer.apply_chat_template(
        _with_texts(messages, shield.hide),
        add_generation_prompt,
        _with_texts(tools, shield.hide) or None,
        continue_final_message=continue_final_message,
        chat_template_kwargs=chat_template_kwargs,
    )
    check(shield.reveal(text))
    tokens = tokenizer.encode("", add_special_tokens)
    plain = ""
    for stretch, is_special in _split(text, special):
        if is_special or not shield.holds(stretch):
            plain += stretch
            continue
        if plain:
            tokens += tokenizer.encode(plain, False)
            plain = ""
        tokens += tokenizer.encode(shield.reveal(stretch), False, False)
    return tokens + tokenizer.encode(plain, False) if plain else tokens


def special_names(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """What finds the names of special tokens in a text; None where the tokenizer has none."""
    names = {tokenizer.token_text(token) for token in tokenizer.special_ids} - {""}
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if names else None


class _Shield:
    """Swaps each name of a special token for one private-use character, and back.

    The characters are ones that no message contains. Being single and no space, they survive
    whatever a template does to text: trimming, cutting, splitting.
    """

    def __init__(self, special: re.Pattern[str], texts: Sequence[str]) -> None:
        self._special = special
        names = {name for text in texts for name in special.findall(text)}
        taken = {char for text in texts for char in text if char >= _PRIVATE_USE[0]}
        free = (
            char
            for char in map(chr, range(ord(_PRIVATE_USE[0]), ord(_PRIVATE_USE[1])))
            if char not in taken
        )
        self._stand_ins = dict(zip(names, free, strict=False))
        if len(self._stand_ins) < len(names):
            raise RequestError(
                "the messages hold names of special tokens and every character of Unicode's "
                "plane 15, which leaves none to stand in for the names",
                "messages",
            )
        self._names = {ord(char): name for name, char in self._stand_ins.items()}

    @property
    def needed(self) -> bool:
        return bool(self._names)

    def hide(self, text: str) -> str:
        return self._special.sub(lambda match: self._stand_ins[match[0]], text)

    def holds(self, text: str) -> bool:
        return any(char in text for char in self._stand_ins.values())

    def reveal(self, text: str) -> str:
        return text.translate(self._names)


def _texts(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_with_texts(item, change) for item in value]
    return value


def _split(text: str, special: re.Pattern[str]) -> list[tuple[str, bool]]:
    """``text`` cut at special tokens: (stretch, whether it is one)."""
    parts, at = [], 0
    for match in special.finditer(text):
        if match.start() > at:
            parts.append((text[at : match.start()], False))
        parts.append((match[0], True))
        at = match.end()
    if at < len(text):
        parts.append((text[at:], False))
    return parts

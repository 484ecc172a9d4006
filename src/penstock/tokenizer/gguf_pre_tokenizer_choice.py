"""Which of llama.cpp's ways to cut a text into words is that of a tokenizer.json.

A tokenizer.json has regular expressions and llama.cpp a list of names, whose expressions are
written otherwise and differ in rare characters. So ways are compared by what they do: on texts of
all kinds of characters in all kinds of neighbourhoods.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tokenizers import pre_tokenizers

from penstock.errors import TokenizerError
from penstock.tokenizer.gguf_pre_tokenizers import PreTokenizer, pre_tokenizer_kinds

_ASCII: Final = (
    *("a", "b", "z", "Q", "R", "st", "ve", "Word", "lower", "UPPER", "camelCase"),
    *("'", "'s", "'t", "'re", "'ll", "'D", "'VE", "'x"),
    *("1", "2", "37", "456", "7890", "123456", "1234567"),
    *(" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n", "\r\n", "\t"),
    *(".", ",", "!", "?", "(", ")", "/", "//", "-", "_", "$", "+", "<", "=", "^", "~", "|"),
    *("`", '"', "#", "@", "{", "\\", "...", "*"),
)
_OTHERS: Final = ("中", "文字", "あ", "カナ", "한글", "א", "ب", "ع", "€", "😀", "。", "¿")
_RARE: Final = (
    *("é", "É", "ж", "Ж", "ß", "ñandú", "Ωμ", "e\u0301", "ไทย", "क्षि"),
    *("½", "²", "٣٤", "\u00a0", "\u3000", "\u200b", "…", "—"),
)
_COMMON_TEXTS: Final = 400
_RARE_TEXTS: Final = 200
_LONGEST: Final = 12  # pieces in a text

Cut = Callable[[str], list[str]]


def chosen_pre_tokenizer(
    own: pre_tokenizers.PreTokenizer, suits: Callable[[PreTokenizer], bool]
) -> str | None:
    """The name of the way to cut a text that is ``own``; None: llama.cpp has none like it.

    All texts of ASCII and of letters without case must be cut alike. Where several ways do that,
    the one that agrees on most of the others is taken: llama.cpp itself is less exact there. Ways
    that do not ``suit`` in other respects are passed over.
    """
    common, rare = _texts()
    mine = _cutter(own)
    try:
        expected = [mine(text) for text in common]
        others = [mine(text) for text in rare]
    except Exception as error:  # of the library, which raises nothing more special
        raise TokenizerError(f"tokenizer.json cannot cut a text into words: {error}") from error
    best, best_count = None, -1
    for name, kind in pre_tokenizer_kinds():
        if not kind.spelled_bytes or not suits(kind):
            continue
        cut = _cutter(pre_tokenizers.Sequence(kind.steps))
        if any(cut(text) != words for text, words in zip(common, expected, strict=True)):
            continue
        count = sum(cut(text) == words for text, words in zip(rare, others, strict=True))
        if count > best_count:
            best, best_count = name, count
    return best


def probe_texts() -> list[str]:
    """Texts of ASCII and of letters without case."""
    return _texts()[0]


def _texts() -> tuple[list[str], list[str]]:
    generator = random.Random(0)
    return (
        _drawn(generator, (*_ASCII, *_OTHERS), _COMMON_TEXTS),
        _drawn(generator, (*_ASCII, *_OTHERS, *_RARE, *_RARE), _RARE_TEXTS),
    )


def _drawn(generator: random.Random, pieces: Sequence[str], count: int) -> list[str]:
    lengths = [generator.randint(1, _LONGEST) for _ in range(count)]
    return ["".join(generator.choices(pieces, k=length)) for length in lengths]


def _cutter(steps: pre_tokenizers.PreTokenizer) -> Cut:
    def cut(text: str) -> list[str]:
        return [word for word, _ in steps.pre_tokenize_str(text)]

    return cut

"""How long a text may be before it is sure not to fit in a context, without tokenizing it.

Where tokenizing loses nothing, every byte of the normalized text is in a token, and a token holds
at most the bytes of its entry: a text of ``n`` bytes has at least ``n / longest`` tokens. So it is
for byte-pair and unigram models that have all bytes of UTF-8 as tokens (spelled as characters, or
for byte fallback), so that no token is ever unknown, dropped or fused. What cuts up the text before
must drop nothing, and added tokens may not swallow space beside them.

A normalizer may add bytes. Of those that take some, composition (NFC) is understood: it maps at
most four bytes to one, and ASCII to itself. For any other tokenizer there is no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from penstock.tokenizer.pieces import byte_alphabet

COMPOSED = 4
"""More bytes than NFC makes one of: 3.5 is the most, of U+1FBE, U+0308 and U+0301, seven bytes that
become the two of U+0390."""
_BYTES = sorted({*range(0xF5)} - {0xC0, 0xC1})
"""The byte values that occur in UTF-8."""
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace"})
_SPLITTING = frozenset({"Split", "Punctuation"})


@dataclass(frozen=True)
class LengthBound:
    """The most text that one token of a tokenizer can hold."""

    longest: int
    """Maximum number of bytes of normalized text in one token."""
    composes: bool = False
    """Whether the text is normalized by NFC."""

    def fits(self, text: str, max_tokens: int) -> bool:
        """False if ``text`` has more than ``max_tokens`` tokens for certain."""
        most = max_tokens * self.longest
        if self.composes and not text.isascii():
            most *= COMPOSED
        if 4 * len(text) <= most:
            return True
        if len(text) > most:
            return False
        return len(text.encode("utf-8", "surrogatepass")) <= most

    @classmethod
    def read(cls, backend: Backend) -> LengthBound | None:
        """The bound of this tokenizer, None where there is none. Reads the whole vocabulary."""
        normalizer = _steps(backend.normalizer, "normalizers")
        cutter = _steps(backend.pre_tokenizer, "pretokenizers")
        added = backend.get_added_tokens_decoder().values()
        if (
            not all(map(_normalizes_plainly, normalizer))
            or not all(map(_drops_nothing, cutter))
            or any(token.lstrip or token.rstrip for token in added)
        ):
            return None
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
        by_byte = any(step["type"] == "ByteLevel" for step in cutter)
        if not _has_all_bytes(backend.model, vocabulary, by_byte):
            return None
        # An entry of characters that stand for bytes is as many bytes as characters.
        longest = max(map(len if by_byte else num_bytes, vocabulary), default=1)
        for token in added:
            longest = max(longest, num_bytes(token.content))
            if token.normalized and backend.normalizer is not None:
                normalized = backend.normalizer.normalize_str(token.content)
                longest = max(longest, num_bytes(normalized))
        return cls(longest, any(step["type"] == "NFC" for step in normalizer))


def _steps(part: Any, name: str) -> list[Mapping[str, Any]]:
    """The parts that a normalizer or pre-tokenizer consists of, as tokenizer.json has them."""
    if part is None:
        return []
    return _flat(msgspec.json.decode(part.__getstate__()), name)


def _flat(state: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state[name] for step in _flat(part, name)]


def _normalizes_plainly(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is not None and num_bytes(step["content"]) >= num_bytes(pattern)
    return step["type"] in ("NFC", "Prepend")


def _drops_nothing(step: Mapping[str, Any]) -> bool:
    kind = step["type"]
    return kind in _KEEPING or (kind in _SPLITTING and step.get("behavior") != "Removed")


def _has_all_bytes(model: Any, vocabulary: Mapping[str, int], by_byte: bool) -> bool:
    """Whether the model splits any text into tokens that spell it, none of them unknown."""
    if type(model).__name__ not in ("BPE", "Unigram"):
        return False
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    if any(getattr(model, name, None) for name in affixes):
        return False
    if by_byte and type(model).__name__ != "BPE":
        return False
    if not by_byte and not getattr(model, "byte_fallback", False):
        return False
    return spells_all_bytes(vocabulary.__contains__, by_byte)


def spells_all_bytes(is_entry: Callable[[str], bool], by_byte: bool) -> bool:
    """Whether all bytes of UTF-8 have tokens: as printable characters, or spelled ``<0xE9>``."""
    alphabet = byte_alphabet()
    return all(is_entry(alphabet[b] if by_byte else f"<0x{b:02X}>") for b in _BYTES)


def num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))

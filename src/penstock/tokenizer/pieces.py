"""What each token contributes to the text, as bytes.

Every decoder used by language models concatenates its tokens' bytes and reads them as UTF-8;
they differ in how a vocabulary entry spells its bytes and in whether the text's first space is
dropped. With that known per token, detokenizing is appending bytes, one token at a time or all
at once with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import AddedToken

from penstock.errors import TokenizerError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class PieceRule:
    """How vocabulary entries spell text; read from a tokenizer's decoder."""

    byte_level: bool = False
    """Whether entries spell each byte as one printable character, as GPT-2's do."""
    byte_fallback: bool = False
    """Whether an entry such as ``<0x0A>`` stands for that byte."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Replacements applied in order to other entries: SentencePiece spells a space as U+2581."""
    separator: str = ""
    """Text put before each entry (of tokenizers without a decoder)."""
    strip: str = ""
    """Text removed once from the start of the text, if it starts with it."""
    strip_first_token: str = ""
    """Text removed wherever it occurs in the text's first token."""


class Entries(Protocol):
    """A vocabulary as it spells its tokens."""

    @property
    def rule(self) -> PieceRule:
        """How entries spell text."""
        ...

    @property
    def added(self) -> Mapping[int, AddedToken]:
        """The tokens that are found in texts before these are cut, by id."""
        ...

    def entry(self, token_id: int) -> str | None:
        """An entry as the vocabulary spells it; None where there is no such token."""
        ...


class Pieces(dict[int, bytes]):
    """The bytes of every token id, computed when first asked for.

    An id that the vocabulary does not have has none, and ``silent`` ones have none either.
    """

    def __init__(self, entries: Entries, silent: Iterable[int] = ()) -> None:
        super().__init__(dict.fromkeys(silent, b""))
        self.rule = entries.rule
        self._entries = entries
        self._alphabet = {char: byte for byte, char in enumerate(byte_alphabet())}
        # The text of an added token is matched as it is written, so it is produced as written.
        self._added: dict[int, str] = {i: token.content for i, token in entries.added.items()}

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._spell(token_id)
        return piece

    def first(self, token_id: int) -> bytes:
        """The token's bytes where it begins a text, whose leading space may be dropped."""
        rule = self.rule
        if rule.strip_first_token and token_id not in self._added:
            entry = self._entries.entry(token_id) or ""
            if not _BYTE_TOKEN.fullmatch(entry):
                return entry.replace(rule.strip_first_token, "").encode()
        return self[token_id].removeprefix(rule.strip.encode())

    def _spell(self, token_id: int) -> bytes:
        rule = self.rule
        added = self._added.get(token_id)
        if added is not None:
            return f"{rule.separator}{added}".encode()
        entry = self._entries.entry(token_id)
        if entry is None:
            return b""
        if rule.byte_level:
            try:
                return bytes([self._alphabet[char] for char in entry])
            except KeyError:
                return entry.encode()
        if rule.byte_fallback and (match := _BYTE_TOKEN.fullmatch(entry)):
            return bytes([int(match[1], 16)])
        for old, new in rule.replacements:
            entry = entry.replace(old, new)
        return (rule.separator + entry).encode()


def byte_alphabet() -> str:
    """The 256 characters that stand for the bytes 0 to 255 in byte-level vocabularies.

    Printable Latin-1 characters stand for themselves, the others for U+0100 onwards in order
    (Radford et al., GPT-2, 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def read_rule(decoder: Mapping[str, Any] | None) -> PieceRule:
    """The rule of a ``decoder`` as tokenizer.json holds it.

    Raises TokenizerError for decoders that are not a concatenation of tokens.
    """
    if decoder is None:
        return PieceRule(separator=" ", strip=" ")
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    rule: dict[str, Any] = {"replacements": ()}
    fused = False
    for step in steps:
        kind = step.get("type")
        pattern = step.get("pattern", {})
        if kind == "ByteLevel" and len(steps) == 1:
            rule["byte_level"] = True
        elif kind == "Replace" and "String" in pattern and not fused:
            rule["replacements"] += ((pattern["String"], step["content"]),)
        elif kind == "ByteFallback" and not fused:
            rule["byte_fallback"] = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and step.get("stop") == 0 and step.get("start") in (0, 1):
            rule["strip"] = step["content"] * step["start"]
        elif kind == "Metaspace" and not fused:
            if step.get("prepend_scheme", "always") != "never":
                rule["strip_first_token"] = step["replacement"]
            rule["replacements"] += ((step["replacement"], " "),)
        else:
            raise TokenizerError(
                f"tokenizer.json has a decoder step that Penstock cannot run: {step!r}; it reads "
                "ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse and Strip"
            )
    return PieceRule(**rule)

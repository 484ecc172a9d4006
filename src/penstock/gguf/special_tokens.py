"""What a GGUF file says about single tokens: their kinds, and which of them end a text.

Conversions of one model differ in what they say. So llama.cpp, which their authors try them with,
also goes by the names of tokens: :data:`END_NAMES` end a generation, and they and
:data:`INFILL_NAMES` are control tokens, whatever the file calls them. This module does the same,
but for ``</s>``: that is also the tag that ends struck-out text in HTML, and a token of that kind
in many vocabularies (Gemma's, for one), so it ends a text only where the file calls it a control
token.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.gguf.arrays import Numbers, Strings
from penstock.gguf.metadata import GgufValue

END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        # What pads, or parts files, in a model that fills in code: the answer is over.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
"""Names of tokens that end a generation, as llama.cpp has them."""
INFILL_NAMES = frozenset(
    {
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>"),
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>"),
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>"),
        *("▁<PRE>", "▁<SUF>", "▁<MID>", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        *("<|prefix|>", "<|suffix|>", "<|middle|>"),
    }
)
"""Names of control tokens around the code that a model fills in."""
_STRUCK = "</s>"
_MESSAGE_ENDS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|calls|>", "<|flush|>"}))
"""Where a vocabulary has these ends, ``<|end|>`` ends a message within a text and not the text."""
END_FIELDS = (
    *("eot_token_id", "eom_token_id"),
    *("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"),
)
"""Fields of ``tokenizer.ggml`` that, besides ``eos_token_id``, name tokens that end a text."""


class Kind(enum.IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that are not merged, and what they do."""

    control: tuple[int, ...]
    """Tokens that stand for no text, and are found in a text only on demand."""
    user_defined: tuple[int, ...]
    """Tokens that are found in any text before it is cut into words."""
    silent: frozenset[int]
    """Tokens that are never found and have no text: those the file calls unused or undefined."""
    ends: tuple[int, ...]
    """Tokens that end a generation: the EOS token first."""

    @classmethod
    def read(
        cls,
        tokens: Sequence[str],
        kinds: Sequence[int] | Numbers,
        eos: int | None,
        ends: Iterable[int],
    ) -> SpecialTokens:
        """``ends`` are what :data:`END_FIELDS` name."""
        normal = int(Kind.NORMAL)  # not an enum's member: most tokens are, and it is compared fast
        if isinstance(kinds, Numbers):
            others = kinds.unlike(normal)
        else:
            others = [(i, kind) for i, kind in enumerate(kinds) if kind != normal]
        control = {token for token, kind in others if kind in (Kind.CONTROL, Kind.UNKNOWN)}
        plain = {token for token, kind in others if kind == Kind.USER_DEFINED}
        ids = _named(tokens, END_NAMES | INFILL_NAMES | {_STRUCK})
        ending = {ids[name] for name in ids.keys() & END_NAMES}
        control |= ending | {ids[name] for name in ids.keys() & INFILL_NAMES}
        if ids.get(_STRUCK) in control:
            ending.add(ids[_STRUCK])
        ending.update(ends)
        if "<|end|>" in ids and any(names <= ids.keys() for names in _MESSAGE_ENDS):
            ending.discard(ids["<|end|>"])
        first = [] if eos is None else [eos]
        silent = {token for token, kind in others if kind != Kind.BYTE} - control - plain
        return cls(
            control=tuple(sorted(control)),
            user_defined=tuple(sorted(plain - control)),
            silent=frozenset(silent),
            ends=tuple(first + sorted(ending - set(first))),
        )


def end_token_ids(metadata: Mapping[str, GgufValue]) -> tuple[int, ...]:
    """The tokens that end a generation of the model in a file of this metadata, the EOS token
    first. Empty where the file has no vocabulary; a malformed one is the tokenizer's to refuse.
    """

    def field(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}")
        return value if type(value) is int and 0 <= value < len(tokens) else None

    listed = metadata.get("tokenizer.ggml.tokens", [])
    tokens: Sequence[GgufValue] = listed if isinstance(listed, (list, Strings)) else []
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    ends = [token for name in END_FIELDS if (token := field(name)) is not None]
    special = SpecialTokens.read(
        tokens
        if isinstance(tokens, Strings)
        else [token if isinstance(token, str) else "" for token in tokens],
        kinds if isinstance(kinds, Numbers) else [],
        field("eos_token_id"),
        ends,
    )
    return special.ends


def _named(tokens: Sequence[str], names: Iterable[str]) -> Mapping[str, int]:
    wanted = frozenset(names)
    if isinstance(tokens, Strings):
        return tokens.positions(wanted)
    return {token: token_id for token_id, token in enumerate(tokens) if token in wanted}

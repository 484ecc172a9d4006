"""Filling a gap in a text: a prompt of what is before and behind it, between a model's tokens for
that, in the dialects that know such requests.

The forms are those of the models' makers: StarCoder's (https://arxiv.org/abs/2305.06161),
Code Llama's (https://arxiv.org/abs/2308.12950) and, for several files, Qwen2.5-Coder's
(https://arxiv.org/abs/2409.12186).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.server.errors import ApiError
from penstock.tokenizer import Tokenizer

_MARKS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("[PREFIX]", "[SUFFIX]", None),
)
"""What stands before the prefix, before the suffix, and before what is between, by families of
models. None: the suffix comes first, and what is between follows the prefix."""
_FILES: Final = ("<|file_sep|>", "<file_sep>")
"""What stands before the name of each file."""
_ENDS: Final = (
    "▁<EOT>",
    "<EOT>",
    "<|endoftext|>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "<|repo_name|>",
    "<|file_separator|>",
    *_FILES,
)
"""What models write behind a gap that they have filled; of some it is no end of sequence."""


@dataclass(frozen=True)
class Gap:
    """The tokens that mark a gap."""

    prefix: int
    suffix: int
    middle: int | None
    """None where the prefix comes last, and the gap after it."""
    file: int | None
    """What sets files apart, where there is such a token."""
    ends: tuple[int, ...]
    """Tokens that end what fills a gap, beside the ends of a sequence."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, param: str, instead: str) -> Gap:
        """Raises ApiError naming the field ``param`` for a tokenizer that has no such tokens;
        ``instead`` is what to do then."""
        ends = tuple(t for t in map(tokenizer.token_id, _ENDS) if t is not None)
        file = next((t for t in map(tokenizer.token_id, _FILES) if t is not None), None)
        for before, behind, between in _MARKS:
            prefix, suffix = tokenizer.token_id(before), tokenizer.token_id(behind)
            middle = None if between is None else tokenizer.token_id(between)
            if prefix is None or suffix is None or (between is not None and middle is None):
                continue
            return cls(prefix, suffix, middle, file, ends)
        raise ApiError(
            400,
            "the model cannot fill in: its tokenizer has no tokens for what is before and behind a "
            f"gap; {instead}",
            param=param or None,
            code="unsupported_parameter" if param else "unsupported_endpoint",
        )

    def prompt(
        self,
        prefix: Sequence[int],
        suffix: Sequence[int],
        begun: Sequence[int] = (),
        before: Sequence[int] = (),
    ) -> list[int]:
        """Return the prompt: ``begun`` is what the gap begins with, and ``before`` stands at the
        start."""
        if self.middle is None:
            return [*before, self.suffix, *suffix, self.prefix, *prefix, *begun]
        return [*before, self.prefix, *prefix, self.suffix, *suffix, self.middle, *begun]

"""The prompt of ``POST /infill``: what is before and behind a gap, between a model's tokens for it.

The forms are those of the models' makers: StarCoder's (https://arxiv.org/abs/2305.06161),
Code Llama's (https://arxiv.org/abs/2308.12950) and, for several files, Qwen2.5-Coder's
(https://arxiv.org/abs/2409.12186).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.server.errors import ApiError
from penstock.server.llama.protocol import InfillRequest
from penstock.server.serving import Serving
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


@dataclass(frozen=True)
class _Gap:
    """The tokens that mark a gap."""

    prefix: int
    suffix: int
    middle: int | None
    """None where the prefix comes last, and the gap after it."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> _Gap:
        """Raises ApiError for a tokenizer that has no such tokens."""
        for before, behind, between in _MARKS:
            prefix, suffix = tokenizer.token_id(before), tokenizer.token_id(behind)
            middle = None if between is None else tokenizer.token_id(between)
            if prefix is None or suffix is None or (between is not None and middle is None):
                continue
            return cls(prefix, suffix, middle)
        raise ApiError(
            400,
            "the model cannot fill in: its tokenizer has no tokens for what is before and behind a "
            "gap; ask /completion",
            code="unsupported_endpoint",
        )


async def infill_tokens(request: InfillRequest, serving: Serving) -> list[int]:
    """The prompt. Raises ApiError or RequestError."""
    engine = serving.engine
    tokenizer = engine.tokenizer
    gap = _Gap.of(tokenizer)
    found = (tokenizer.token_id(name) for name in _FILES)
    file_mark = next((token for token in found if token is not None), None)
    extra = [
        (f"{each.filename}\n" if file_mark is not None else "") + f"{each.text}\n"
        for each in request.input_extra
    ]
    texts = [request.input_prefix, request.input_suffix, request.prompt, *extra]
    names = ["input_prefix", "input_suffix", "prompt"]
    names += [f"input_extra[{i}].text" for i in range(len(extra))]
    prefix, suffix, begun, *files = await engine.inputs.encode(
        texts,
        params=names,
        add_special_tokens=False,
        parse_special=False,
        tenant=serving.caller.name,
    )
    tokens = list(tokenizer.settings.prefix_ids)
    for file in files:
        tokens += file if file_mark is None else [file_mark, *file]
    if gap.middle is None:
        return [*tokens, gap.suffix, *suffix, gap.prefix, *prefix, *begun]
    return [*tokens, gap.prefix, *prefix, gap.suffix, *suffix, gap.middle, *begun]

"""The marks of styles as a model's tokens spell them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.parsing.styles import ReasoningStyle, ToolStyle
from penstock.tokenizer import Tokenizer


def has_special_marks(
    tokenizer: Tokenizer, reasoning: ReasoningStyle | None, tools: ToolStyle | None
) -> bool:
    """Whether a mark of the styles is a special token, which decoded text usually omits."""
    marks = [style.opening for style in (reasoning, tools) if style is not None]
    if tools is not None and tools.section is not None:
        marks += tools.section
    return any(tokenizer.token_id(mark) in tokenizer.special_ids for mark in marks if mark)


def opened(tokenizer: Tokenizer, prompt: Sequence[int], style: ReasoningStyle) -> bool:
    """Whether the prompt ends with the reasoning's opening, so that the answer is inside."""
    # A mark may be spelled by as many tokens as it has bytes; some space may follow it.
    end = tokenizer.decode(prompt[-len(style.opening) - 4 :], skip_special_tokens=False)
    return end.rstrip().endswith(style.opening)

"""The marks of styles as a model's tokens spell them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.parsing.forms import ChannelForm
from penstock.parsing.style import ReasoningStyle, Start, ToolStyle
from penstock.tokenizer import Tokenizer


def has_special_marks(
    tokenizer: Tokenizer, reasoning: ReasoningStyle | None, tools: ToolStyle | None
) -> bool:
    """Whether a mark of the styles is a special token, which decoded text usually omits."""
    marks = [mark for style in (reasoning, tools) if style is not None for mark in style.marks]
    return any(tokenizer.token_id(mark) in tokenizer.special_ids for mark in marks)


def start_behind(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    reasoning: ReasoningStyle | None,
    tools: ToolStyle | None = None,
) -> Start:
    """Where an answer begins that goes on from ``prompt``: inside the reasoning if that ends with
    the reasoning's opening, and inside a message if it has left one open."""
    for style in (reasoning, tools):
        if style is not None and isinstance(style.form, ChannelForm):
            return _in_message(tokenizer, prompt, style.form)
    if reasoning is None:
        return Start.BEGINNING
    openings = reasoning.opening, reasoning.opening + reasoning.also_opened
    # A mark may be spelled by as many tokens as it has bytes; some space may follow it.
    end = tokenizer.decode(prompt[-len(openings[1]) - 4 :], skip_special_tokens=False)
    return Start.REASONING if end.rstrip().endswith(openings) else Start.BEGINNING


def _in_message(tokenizer: Tokenizer, prompt: Sequence[int], form: ChannelForm) -> Start:
    start = tokenizer.token_id(form.start)
    if start is not None:  # no text of a message is this token
        behind = len(prompt) - next((i for i, id in enumerate(prompt[::-1]) if id == start), 0)
        prompt = prompt[behind:]
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    header, message, _ = text.rpartition(form.start)[2].partition(form.message)
    if not message:
        return Start.BEGINNING
    channel = header.partition(form.channel)[2].strip()
    return Start.REASONING if channel == form.reasoning else Start.CONTENT

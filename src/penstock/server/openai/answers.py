"""From a choice's text to a chat message, whole or in deltas."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec import UNSET

from penstock.server.openai.responses import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from penstock.server.openai.tools import ToolUse
from penstock.server.parsing.answer import AnswerDelta, AnswerParser
from penstock.server.parsing.styles import ReasoningStyle, ToolStyle
from penstock.tokenizer import Tokenizer


class Reading:
    """How the answers to one request are to be read."""

    def __init__(
        self, reasoning: ReasoningStyle | None, in_reasoning: bool, use: ToolUse | None
    ) -> None:
        self._reasoning = reasoning
        self._in_reasoning = in_reasoning
        self._use = use

    def parser(self, eager: bool) -> AnswerParser:
        use = self._use
        return AnswerParser(
            self._reasoning,
            self._in_reasoning,
            None if use is None else use.style,
            frozenset() if use is None else use.names,
            eager=eager,
            single=use is not None and use.single,
        )

    def message(self, text: str) -> tuple[ChatMessage, bool]:
        """The message that is all of ``text``, and whether it has calls."""
        parser = self.parser(eager=False)
        reasoning, content = "", ""
        calls = []
        for delta in (parser.push(text), parser.finish()):
            reasoning += delta.reasoning
            content += delta.content
            for call in delta.calls:
                assert call.name is not None  # without eagerness a call comes whole
                calls.append(ToolCall(self._call_id(), CalledFunction(call.name, call.arguments)))
        message = ChatMessage(
            content if content or not calls else None,
            tool_calls=calls or UNSET,
            reasoning_content=reasoning or UNSET,
        )
        return message, bool(calls)

    def delta(self, new: AnswerDelta) -> ChatDelta:
        return ChatDelta(
            content=new.content or UNSET,
            reasoning_content=new.reasoning or UNSET,
            tool_calls=[
                ToolCallDelta(call.index, FunctionDelta(call.arguments))
                if call.name is None
                else ToolCallDelta(
                    call.index,
                    FunctionDelta(call.arguments, call.name),
                    id=self._call_id(),
                    type="function",
                )
                for call in new.calls
            ]
            or UNSET,
        )

    def _call_id(self) -> str:
        short = self._use is not None and self._use.style.short_ids
        return uuid.uuid4().hex[:9] if short else f"call_{uuid.uuid4().hex[:24]}"


def finish_reason(reason: str | None, called: bool) -> str | None:
    """OpenAI's name for why a choice ended."""
    return "tool_calls" if called and reason == "stop" else reason


def has_special_marks(
    tokenizer: Tokenizer, reasoning: ReasoningStyle | None, tools: ToolStyle | None
) -> bool:
    """Whether a mark to look for is a special token, which text is usually without."""
    marks = [style.opening for style in (reasoning, tools) if style is not None]
    return any(tokenizer.token_id(mark) in tokenizer.special_ids for mark in marks if mark)


def opened(tokenizer: Tokenizer, prompt: Sequence[int], style: ReasoningStyle) -> bool:
    """Whether the prompt ends with the reasoning's opening, so that the answer is inside."""
    # A mark may be spelled by as many tokens as it has bytes; some space may follow it.
    end = tokenizer.decode(prompt[-len(style.opening) - 4 :], skip_special_tokens=False)
    return end.rstrip().endswith(style.opening)

"""Turns the text of a choice into a chat message, whole or in deltas."""

from __future__ import annotations

import uuid

from msgspec import UNSET

from penstock.frontend.outputs import CompletionOutput, PositionLogprobs
from penstock.parsing.answer_parser import AnswerDelta, AnswerParser
from penstock.parsing.style import ReasoningStyle, Start
from penstock.server.fanout import has_news
from penstock.server.openai.answer_structs import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from penstock.server.openai.tools import ToolUse


class Reading:
    """How the answers to one request are parsed."""

    def __init__(self, reasoning: ReasoningStyle | None, start: Start, use: ToolUse | None) -> None:
        self._reasoning = reasoning
        self._start = start
        self._use = use

    def parser(self, eager: bool) -> AnswerParser:
        use = self._use
        return AnswerParser(
            self._reasoning,
            self._start,
            None if use is None else use.style,
            {} if use is None else use.schemas,
            eager=eager,
            single=use is not None and use.single,
        )

    def read(self, text: str) -> AnswerDelta:
        """Parse a whole answer; its calls are complete."""
        parser = self.parser(eager=False)
        found = parser.push(text)
        found.add(parser.finish())
        return found

    def message(self, text: str) -> tuple[ChatMessage, bool]:
        """Return the message for all of ``text``, and whether it has calls."""
        found = self.read(text)
        calls = []
        for call in found.calls:
            assert call.name is not None  # without eagerness a call comes whole
            calls.append(ToolCall(self.call_id(), CalledFunction(call.name, call.arguments)))
        message = ChatMessage(
            content=found.content if found.content or not calls else None,
            tool_calls=calls or UNSET,
            reasoning_content=found.reasoning or UNSET,
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
                    id=self.call_id(),
                    type="function",
                )
                for call in new.calls
            ]
            or UNSET,
        )

    def call_id(self) -> str:
        """Return a new call id."""
        short = self._use is not None and self._use.style.ids == "short"
        return uuid.uuid4().hex[:9] if short else f"call_{uuid.uuid4().hex[:24]}"


class ChoiceStream:
    """The streaming state of one choice; calls come in pieces, or whole if not ``eager``."""

    def __init__(self, reading: Reading, eager: bool = True) -> None:
        self._parser = reading.parser(eager=eager)
        self._before: CompletionOutput | None = None
        self._logprobs: list[PositionLogprobs] | None = None
        self._sent_tokens = 0

    @property
    def called(self) -> bool:
        """Whether the choice has made calls."""
        return self._parser.num_calls > 0

    def take(self, choice: CompletionOutput) -> AnswerDelta | None:
        """Return the delta to send now, possibly empty at the end; None if there is nothing new."""
        if not has_news(choice, self._before):
            return None
        new = choice.since(self._before)
        self._before = choice
        if new.logprobs is not None:
            self._logprobs = (self._logprobs or []) + new.logprobs
        delta = self._parser.push(new.text)
        if choice.finish_reason is not None:
            delta.add(self._parser.finish())
        elif not delta:
            return None
        return delta

    def take_logprobs(self) -> list[PositionLogprobs] | None:
        """Return log-probabilities of the tokens since the last call, including tokens that spell
        marks."""
        logprobs, self._logprobs = self._logprobs, None
        return logprobs

    def take_token_ids(self) -> list[int]:
        """Return the tokens since the last call, including tokens that spell marks."""
        assert self._before is not None
        token_ids = self._before.token_ids[self._sent_tokens :]
        self._sent_tokens += len(token_ids)
        return token_ids


def finish_reason(reason: str | None, called: bool) -> str | None:
    """Return OpenAI's finish reason."""
    return "tool_calls" if called and reason == "stop" else reason

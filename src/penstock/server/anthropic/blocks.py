"""The blocks of a message as they grow, and the events that report their growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from penstock.parsing.answer_parser import AnswerDelta
from penstock.server.anthropic.protocol import (
    Block,
    MessageDelta,
    MessageEvent,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

Kind = Literal["thinking", "text", "tool_use"]

_NO_INPUT = msgspec.Raw(b"{}")


class _Growing:
    """One block; ``text`` is its reasoning, its text or a call's arguments."""

    def __init__(self, kind: Kind, name: str = "", call_id: str = "") -> None:
        self.kind = kind
        self._name = name
        self._call_id = call_id
        self._text = ""

    def grow(self, text: str) -> MessageDelta:
        self._text += text
        if self.kind == "thinking":
            return MessageDelta(type="thinking_delta", thinking=text)
        if self.kind == "text":
            return MessageDelta(type="text_delta", text=text)
        return MessageDelta(type="input_json_delta", partial_json=text)

    def block(self) -> Block:
        if self.kind == "thinking":
            return ThinkingBlock(thinking=self._text)
        if self.kind == "text":
            return TextBlock(text=self._text)
        return ToolUseBlock(id=self._call_id, name=self._name, input=_object(self._text))


class Blocks:
    """Reasoning, text and calls, in the order in which they come."""

    def __init__(self, call_id: Callable[[], str]) -> None:
        self._call_id = call_id
        self._blocks: list[_Growing] = []

    @property
    def called(self) -> bool:
        """Whether there is a call of a tool."""
        return any(block.kind == "tool_use" for block in self._blocks)

    def all(self) -> list[Block]:
        return [block.block() for block in self._blocks]

    def take(self, delta: AnswerDelta) -> Iterator[MessageEvent]:
        """Take a delta and return its events."""
        if delta.reasoning:
            yield from self._grow("thinking", delta.reasoning)
        if delta.content:
            yield from self._grow("text", delta.content)
        for call in delta.calls:
            if call.name is not None:
                yield from self._open(_Growing("tool_use", call.name, self._call_id()))
            if call.arguments:
                yield self._more(call.arguments)

    def finish(self) -> Iterator[MessageEvent]:
        """End the last block. An answer without any is a block of no text."""
        if not self._blocks:
            yield from self._open(_Growing("text"))
        yield self._stop()

    def _grow(self, kind: Kind, text: str) -> Iterator[MessageEvent]:
        if not self._blocks or self._blocks[-1].kind != kind:
            yield from self._open(_Growing(kind))
        yield self._more(text)

    def _open(self, block: _Growing) -> Iterator[MessageEvent]:
        if self._blocks:
            yield self._stop()
        self._blocks.append(block)
        yield MessageEvent(
            type="content_block_start", index=self._last, content_block=block.block()
        )

    def _more(self, text: str) -> MessageEvent:
        delta = self._blocks[-1].grow(text)
        return MessageEvent(type="content_block_delta", index=self._last, delta=delta)

    def _stop(self) -> MessageEvent:
        return MessageEvent(type="content_block_stop", index=self._last)

    @property
    def _last(self) -> int:
        return len(self._blocks) - 1


def _object(text: str) -> msgspec.Raw:
    """The arguments of a call as JSON; of a call that broke off, what can be said in JSON: none."""
    try:
        parsed = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        return _NO_INPUT
    return msgspec.Raw(text.encode()) if isinstance(parsed, dict) and text else _NO_INPUT

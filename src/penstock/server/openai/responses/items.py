"""The items of a response as they grow, and the events that report their growth."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.parsing.answer_parser import AnswerDelta
from penstock.server.openai.answer_structs import ChatLogprob
from penstock.server.openai.responses.protocol import (
    FunctionCall,
    Item,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    State,
)

Kind = Literal["reasoning", "message", "call"]
Event = tuple[str, dict[str, Any]]
"""Event type without the prefix ``response.``, and the event's other fields."""

_PREFIXES = {"reasoning": "rs_", "message": "msg_", "call": "fc_"}


@dataclass
class _Growing:
    """One item; ``text`` is that of its only part, or a call's arguments."""

    kind: Kind
    index: int
    name: str = ""
    text: str = ""
    call_id: str = ""
    logprobs: list[ChatLogprob] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.id = f"{_PREFIXES[self.kind]}{uuid.uuid4().hex}"

    def item(self, state: State, empty: bool = False) -> Item:
        """Return the item as the client sees it; with ``empty``, as before any of its text."""
        if self.kind == "call":
            arguments = "" if empty else self.text
            return FunctionCall(
                id=self.id,
                call_id=self.call_id,
                name=self.name,
                arguments=arguments,
                status=state,
            )
        if self.kind == "reasoning":
            thoughts = [] if empty else [ReasoningText(text=self.text)]
            return ReasoningItem(id=self.id, status=state, content=thoughts)
        parts = [] if empty else [OutputText(text=self.text, logprobs=self.logprobs)]
        return OutputMessage(id=self.id, status=state, content=parts)


class Items:
    """Reasoning, one message and calls, in the order in which they began."""

    def __init__(self, call_id: Callable[[], str]) -> None:
        self._call_id = call_id
        self._items: list[_Growing] = []

    def all(self, state: State) -> list[Item]:
        """Return all items; those not done yet have this ``state``."""
        return [item.item("completed" if item.done else state) for item in self._items]

    def take(self, delta: AnswerDelta, logprobs: list[ChatLogprob]) -> Iterator[Event]:
        """Take a delta and return its events; ``logprobs`` go with the content."""
        if delta.reasoning:
            yield from self._grow("reasoning", delta.reasoning, [])
        if delta.content:
            yield from self._close("reasoning")
            yield from self._grow("message", delta.content, logprobs)
        for call in delta.calls:
            if call.name is not None:
                yield from self._close("reasoning")
                yield from self._close("call")
                yield from self._open("call", call.name)
            if call.arguments:
                yield from self._grow("call", call.arguments, [])

    def finish(self, state: State) -> Iterator[Event]:
        """End all items and return the events. Without any item, the answer is an empty message."""
        if not self._items:
            yield from self._open("message")
        for item in self._items:
            yield from self._end(item, state)

    def _find(self, kind: Kind) -> _Growing | None:
        """Return the open item of this kind, or None."""
        return next((item for item in self._items if item.kind == kind and not item.done), None)

    def _open(self, kind: Kind, name: str = "") -> Iterator[Event]:
        item = _Growing(kind, len(self._items), name)
        if kind == "call":
            item.call_id = self._call_id()
        self._items.append(item)
        shown = item.item("in_progress", empty=True)
        yield "output_item.added", {"output_index": item.index, "item": shown}
        if kind == "message":
            yield "content_part.added", {**_part_of(item), "part": OutputText(text="")}
        elif kind == "reasoning":
            yield "content_part.added", {**_part_of(item), "part": ReasoningText(text="")}

    def _grow(self, kind: Kind, text: str, logprobs: list[ChatLogprob]) -> Iterator[Event]:
        item = self._find(kind)
        if item is None:
            yield from self._open(kind)
            item = self._items[-1]
        item.text += text
        item.logprobs += logprobs
        if kind == "call":
            yield "function_call_arguments.delta", {**_place_of(item), "delta": text}
        elif kind == "reasoning":
            yield "reasoning_text.delta", {**_part_of(item), "delta": text}
        else:
            yield "output_text.delta", {**_part_of(item), "delta": text, "logprobs": logprobs}

    def _close(self, kind: Kind) -> Iterator[Event]:
        item = self._find(kind)
        if item is not None:
            yield from self._end(item, "completed")

    def _end(self, item: _Growing, state: State) -> Iterator[Event]:
        if item.done:
            return
        item.done = state == "completed"
        shown = item.item(state)
        if isinstance(shown, FunctionCall):
            fields = {"name": item.name, "arguments": item.text}
            yield "function_call_arguments.done", {**_place_of(item), **fields}
        else:
            (part,) = shown.content
            fields = {**_part_of(item), "text": item.text}
            if isinstance(part, OutputText):
                yield "output_text.done", {**fields, "logprobs": part.logprobs}
            else:
                yield "reasoning_text.done", fields
            yield "content_part.done", {**_part_of(item), "part": part}
        yield "output_item.done", {"output_index": item.index, "item": shown}


def _place_of(item: _Growing) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index}


def _part_of(item: _Growing) -> dict[str, Any]:
    return {**_place_of(item), "content_index": 0}

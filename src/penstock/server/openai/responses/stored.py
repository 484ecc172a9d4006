"""Responses that are kept, to be asked for again and to be gone on from."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.server.errors import ApiError
from penstock.server.openai.responses.protocol import (
    FunctionCall,
    InputItem,
    InputText,
    Item,
    ReasoningItem,
    Response,
    ResponseRequest,
)

MOST_BYTES: Final = 64 << 20
"""The memory that is used for them; those that nobody has asked for longest go first."""

_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


@dataclass(frozen=True)
class StoredResponse:
    owner: str
    """The name of the caller who has asked for it: nobody else finds it."""
    answer: bytes
    input: tuple[InputItem, ...]
    """What the model was given, with the items before where the request went on from others."""
    output: tuple[InputItem, ...]
    num_bytes: int

    @property
    def items(self) -> tuple[InputItem, ...]:
        """The conversation so far."""
        return (*self.input, *self.output)


class StoredResponses:
    """The responses of one server, in its memory."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()  # the last used last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: Response, given: Sequence[InputItem], owner: str) -> None:
        """Keep a response that has ended, and the items that the model was given for it."""
        answer = msgspec.json.encode(response)
        items = tuple(map(_named, given))
        said = tuple(map(_said, response.output))
        # Conversations share their items, which are counted for each.
        size = len(answer) + len(msgspec.json.encode(items))
        if size > self._most:
            return
        self._kept[response.id] = StoredResponse(owner, answer, items, said, size)
        self._bytes += size
        while self._bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.num_bytes

    def get(self, name: str, owner: str, param: str = "response_id") -> StoredResponse:
        """Raises ApiError where it is not, or no more, kept for this caller."""
        found = self._kept.get(name)
        if found is None or found.owner != owner:
            raise ApiError(
                404 if param == "response_id" else 400,
                f"{param}: no response {name[:80]!r} is kept; it was deleted, gave way to newer "
                "ones, had store=false, or was another server's",
                param=param,
                code="not_found" if param == "response_id" else "previous_response_not_found",
            )
        self._kept.move_to_end(name)
        return found

    def delete(self, name: str, owner: str) -> None:
        """Raises as :meth:`get`."""
        self._bytes -= self.get(name, owner).num_bytes
        del self._kept[name]

    def check_integrity(self) -> None:
        """Raise AssertionError unless the books agree."""
        assert self._bytes == sum(kept.num_bytes for kept in self._kept.values())
        assert self._bytes <= self._most


def own_items(request: ResponseRequest) -> list[InputItem]:
    """The items of a request's input."""
    if isinstance(request.input, str):
        return [InputItem(role="user", content=request.input)]
    return request.input


def as_shown(item: InputItem) -> dict[str, Any]:
    """An item as ``input_items`` tells it: what it has, with its type."""
    shown: dict[str, Any] = _present(msgspec.to_builtins(item))
    return shown


def _present(value: Any) -> Any:
    """JSON without the fields that are null."""
    if isinstance(value, dict):
        return {name: _present(each) for name, each in value.items() if each is not None}
    return [_present(each) for each in value] if isinstance(value, list) else value


def _said(item: Item) -> InputItem:
    """What a model has said, as it is given to it again."""
    if isinstance(item, FunctionCall):
        return InputItem(
            type="function_call",
            id=item.id,
            status=item.status,
            call_id=item.call_id,
            name=item.name,
            arguments=item.arguments,
        )
    if isinstance(item, ReasoningItem):
        thoughts = [InputText(type="reasoning_text", text=part.text) for part in item.content]
        return InputItem(type="reasoning", id=item.id, status=item.status, content=thoughts)
    parts = [InputText(type="output_text", text=part.text) for part in item.content]
    return InputItem(id=item.id, status=item.status, role="assistant", content=parts)


def _named(item: InputItem) -> InputItem:
    """The item with an id, its text as parts, and its end."""
    changes: dict[str, Any] = {}
    if item.id is None:
        changes["id"] = f"{_PREFIXES[item.type]}_{uuid.uuid4().hex}"
    if item.type == "message" and isinstance(item.content, str):
        kind: Any = "output_text" if item.role == "assistant" else "input_text"
        changes["content"] = [InputText(type=kind, text=item.content)]
    if item.status is None and item.type != "reasoning":
        changes["status"] = "completed"
    return msgspec.structs.replace(item, **changes)

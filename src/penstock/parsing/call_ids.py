"""The ids of calls in a chat's messages, for templates that write them as part of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TemplateMessage = Mapping[str, Any]


def with_numbered_ids(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """``messages`` with the ids of calls and of what they returned as ``functions.NAME:3``, by the
    number of the call in the conversation from 0. Results of other calls stay as they are."""
    made: dict[str, str] = {}  # by the client's ids
    numbered: list[TemplateMessage] = []
    count = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or []:
            made[call["id"]] = f"functions.{call['function']['name']}:{count}"
            calls.append({**call, "id": made[call["id"]]})
            count += 1
        if calls:
            message = {**message, "tool_calls": calls}
        if message.get("tool_call_id") in made:
            message = {**message, "tool_call_id": made[message["tool_call_id"]]}
        numbered.append(message)
    return numbered

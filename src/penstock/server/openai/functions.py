"""``functions`` and ``function_call``, which OpenAI's API had before tools: one call at the most.

A request in the old form is turned into one with tools when it is read, and its answer back when
it is written; all between knows tools alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from penstock.server.errors import ApiError
from penstock.server.openai.answer_structs import ChatDelta, ChatMessage
from penstock.server.openai.messages import read_arguments
from penstock.server.openai.protocol import ChatRequest, Message, MessageCall

ToolChoice = str | dict[str, object]


def is_old(request: ChatRequest) -> bool:
    """Whether the answer's call must be in the old form."""
    return bool(request.functions)


def with_tools(request: ChatRequest) -> ChatRequest:
    """The same request with tools alone; as it is where it has nothing of the old form.

    Raises ApiError naming the field where both forms are mixed, or a result has no name.
    """
    messages = _messages(request.messages)
    if messages is not None:
        request = msgspec.structs.replace(request, messages=messages)
    if request.functions is None and request.function_call is None:
        return request
    if request.functions and request.tools:
        raise _mixed("functions", "tools")
    if not request.functions:
        if request.function_call not in (None, "none", "auto"):
            raise ApiError(
                400,
                "function_call needs functions; with tools send tool_choice",
                param="function_call",
            )
        return msgspec.structs.replace(request, functions=None, function_call=None)
    if request.tool_choice is not None:
        raise _mixed("tool_choice", "functions; send function_call")
    return msgspec.structs.replace(
        request,
        functions=None,
        function_call=None,
        tools=[{"type": "function", "function": each} for each in request.functions],
        tool_choice=_choice(request.function_call),
        parallel_tool_calls=False,
    )


def old_message(message: ChatMessage) -> ChatMessage:
    """Convert an answer to the old form, with ``function_call``."""
    if not message.tool_calls:
        return message
    call = message.tool_calls[0].function
    return msgspec.structs.replace(message, tool_calls=UNSET, function_call=call)


def old_delta(delta: ChatDelta) -> ChatDelta:
    """Convert a part of a streamed answer to the old form."""
    if not delta.tool_calls:
        return delta
    part = delta.tool_calls[0].function
    return msgspec.structs.replace(delta, tool_calls=UNSET, function_call=part)


def old_reason(reason: str | None) -> str | None:
    """Return the old form's finish reason."""
    return "function_call" if reason == "tool_calls" else reason


def _choice(given: ToolChoice | None) -> ToolChoice | None:
    if isinstance(given, dict) and list(given) == ["name"]:
        return {"type": "function", "function": given}
    if given in (None, "none", "auto"):
        return given
    raise ApiError(
        400,
        "function_call: must be 'none', 'auto', or an object with the name of a function",
        param="function_call",
    )


def _messages(given: Sequence[Message]) -> list[Message] | None:
    """Convert calls and results to the form of tools; None if no message uses the old form."""
    if not any(message.role == "function" or message.function_call for message in given):
        return None
    messages = []
    ids: dict[str, str] = {}  # of the last call of each function
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if message.function_call is not None:
            if message.role != "assistant":
                at = f"{where}.function_call"
                raise ApiError(400, f"{at} belongs to assistant messages only", param=at)
            if message.tool_calls:
                raise _mixed(f"{where}.function_call", "tool_calls")
            call = message.function_call
            read_arguments(call.arguments, f"{where}.function_call.arguments")
            ids[call.name] = _id(i)
            calls = [MessageCall(id=ids[call.name], function=call)]
            message = msgspec.structs.replace(message, tool_calls=calls, function_call=None)
        elif message.role == "function":
            if not message.name:
                at = f"{where}.name"
                why = "must be that of the function whose result this is"
                raise ApiError(400, f"{at}: {why}", param=at)
            called = ids.get(message.name, _id(i))
            message = msgspec.structs.replace(message, role="tool", tool_call_id=called)
        messages.append(message)
    return messages


def _id(i: int) -> str:
    """Return an id for the call in message ``i``: nine letters and digits, which some templates
    check."""
    return f"call{i:05d}"


def _mixed(field: str, other: str) -> ApiError:
    return ApiError(400, f"{field} cannot be used beside {other}", param=field)

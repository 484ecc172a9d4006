"""Turns a request of ``/v1/responses`` into an equal chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.server.errors import ApiError
from penstock.server.openai.messages import read_arguments
from penstock.server.openai.protocol import (
    ChatRequest,
    JsonSchemaFormat,
    Message,
    MessageCall,
    MessageFunction,
    NamedSchema,
)
from penstock.server.openai.responses.protocol import (
    AllowedTools,
    FunctionTool,
    InputItem,
    InputText,
    NamedTool,
    ResponseRequest,
    SchemaFormat,
    ToolChoice,
)

_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("content", "summary"),
}
"""What an item of a type consists of; the first fields of all but reasoning are required."""
_ANYWHERE = ("type", "id", "status", "phase")


def as_chat(request: ResponseRequest) -> ChatRequest:
    """Return the request as a chat request. Raises ApiError naming the part of the input at
    fault."""
    if request.top_logprobs and not request.include:
        raise ApiError(
            400,
            'top_logprobs is only allowed with include=["message.output_text.logprobs"]',
            param="top_logprobs",
        )
    messages = []
    if request.instructions is not None:
        messages.append(Message(role="system", content=request.instructions))
    if isinstance(request.input, str):
        messages.append(Message(role="user", content=request.input))
    elif not request.input:
        raise ApiError(400, "input must hold at least one message", param="input")
    else:
        messages += _messages(request.input)
    return ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        logprobs=True if request.include else None,
        top_logprobs=request.top_logprobs,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=request.stop,
        priority=request.priority,
        cache_salt=request.cache_salt,
        cache_keep_s=request.cache_keep_s,
        user=request.user,
        safety_identifier=request.safety_identifier,
        chat_template_kwargs=request.chat_template_kwargs,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(request),
    )


def _tool(tool: FunctionTool) -> dict[str, object]:
    function = {
        name: value
        for name in ("name", "description", "parameters", "strict")
        if (value := getattr(tool, name)) is not None
    }
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice | None) -> str | dict[str, object] | None:
    if isinstance(choice, NamedTool):
        return _named(choice)
    if isinstance(choice, AllowedTools):
        allowed = {"mode": choice.mode, "tools": [_named(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(tool: NamedTool) -> dict[str, object]:
    return {"type": "function", "function": {"name": tool.name}}


def _format(request: ResponseRequest) -> Any:
    given = None if request.text is None else request.text.format
    if isinstance(given, SchemaFormat):
        return JsonSchemaFormat(
            NamedSchema(
                name=given.name,
                schema=given.schema,
                description=given.description,
                strict=given.strict,
            )
        )
    return given


def _messages(items: Sequence[InputItem]) -> list[Message]:
    """A chat's messages: reasoning and calls belong to the answer that they stand beside."""
    messages: list[Message] = []
    reasoning: str | None = None  # of the answer that follows
    for i, item in enumerate(items):
        where = f"input[{i}]"
        _check_fields(item, where)
        answers = item.type == "function_call" or item.role == "assistant"
        if reasoning is not None and not answers:
            messages.append(Message(role="assistant", content="", reasoning_content=reasoning))
            reasoning = None
        if item.type == "reasoning":
            reasoning = _text(item.content or item.summary or [], item, f"{where}.content")
            continue
        if item.type == "function_call_output":
            text = _text(item.output, item, f"{where}.output")
            messages.append(Message(role="tool", tool_call_id=item.call_id, content=text))
        elif item.type == "function_call":
            last = messages[-1] if messages and reasoning is None else None
            if last is None or last.role != "assistant":
                last = Message(role="assistant", reasoning_content=reasoning)
                messages.append(last)
            calls = [*(last.tool_calls or []), _call(item, where)]
            messages[-1] = msgspec.structs.replace(last, tool_calls=calls)
        else:
            assert item.role is not None
            text = _text(item.content, item, f"{where}.content")
            messages.append(Message(role=item.role, content=text, reasoning_content=reasoning))
        reasoning = None
    if reasoning is not None:
        messages.append(Message(role="assistant", content="", reasoning_content=reasoning))
    return messages


def _check_fields(item: InputItem, where: str) -> None:
    own = _FIELDS[item.type]
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if value is None and name in own and item.type != "reasoning":
            at = f"{where}.{name}"
            raise ApiError(400, f"{at} is required of a {item.type}", param=at)
        if value is not None and name not in own and name not in _ANYWHERE:
            at = f"{where}.{'async' if name == 'is_async' else name}"
            raise ApiError(400, f"{at} does not belong to a {item.type} here", param=at)


def _call(item: InputItem, where: str) -> MessageCall:
    assert item.call_id is not None
    assert item.name is not None
    assert item.arguments is not None
    read_arguments(item.arguments, f"{where}.arguments")
    return MessageCall(
        id=item.call_id, function=MessageFunction(name=item.name, arguments=item.arguments)
    )


def _text(given: str | Sequence[InputText] | None, item: InputItem, where: str) -> str:
    assert given is not None
    return given if isinstance(given, str) else _joined(given, item, where)


def _joined(parts: Sequence[InputText], item: InputItem, where: str) -> str:
    texts = []
    for i, part in enumerate(parts):
        at = f"{where}[{i}]"
        text, other = part.text, part.refusal
        if part.type == "refusal":
            text, other = other, text
        if text is None or other is not None:
            field = "refusal" if part.type == "refusal" else "text"
            raise ApiError(400, f"{at} is of type {part.type} and needs {field} alone", param=at)
        if item.type == "reasoning":
            owner = "reasoning"
        elif item.role == "assistant":
            owner = "assistant messages"
        else:
            owner = "input"
        if part.type not in _PARTS[owner]:
            raise ApiError(400, f"{at}: {part.type} does not belong to {owner}", param=at)
        texts.append(text)
    return "".join(texts)


_PARTS = {
    "reasoning": ("reasoning_text", "summary_text"),
    "assistant messages": ("input_text", "output_text", "refusal"),
    "input": ("input_text",),
}

"""Turns a request of ``/v1/messages`` into an equal chat request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import msgspec

from penstock.server.anthropic.protocol import (
    Asked,
    InputBlock,
    InputMessage,
    MessageRequest,
    MessageTool,
    ResultBlock,
    ToolChoice,
)
from penstock.server.errors import ApiError
from penstock.server.openai.names import Names
from penstock.server.openai.protocol import (
    ChatRequest,
    JsonSchemaFormat,
    Message,
    MessageCall,
    MessageFunction,
    NamedSchema,
)

NAMES: Final = Names(
    "max_tokens",
    "output_config.format",
    "output_config.format.schema",
    parameters="input_schema",
)
"""What the dialect calls the fields of a chat."""

_SEPARATOR: Final = "\n"
"""Stands between neighbouring blocks of text, which are one text for chat templates."""

_FIELDS: Final = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content"),
}
"""What a block of a type consists of."""
_OPTIONAL: Final = ("signature", "content")
_OWNERS: Final = {
    "user": ("text", "tool_result"),
    "system": ("text",),
    "assistant": ("text", "thinking", "tool_use"),
}


def as_chat(request: Asked) -> ChatRequest:
    """Return the request as a chat request. Raises ApiError naming the part of the input at
    fault."""
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request),
        chat_template_kwargs=request.chat_template_kwargs,
        tools=None if request.tools is None else _tools(request.tools),
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=_parallel(request.tool_choice),
        response_format=_format(request),
        continue_final_message=_is_continued(request.messages) or None,
    )
    if not isinstance(request, MessageRequest):
        return chat
    return msgspec.structs.replace(
        chat,
        max_completion_tokens=request.max_tokens,
        stream=request.stream,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=request.stop_sequences,
        priority=request.priority,
        cache_salt=request.cache_salt,
        cache_keep_s=request.cache_keep_s,
        user=None if request.metadata is None else request.metadata.user_id,
    )


def _is_continued(messages: Sequence[InputMessage]) -> bool:
    """Whether the answer goes on with the last message, which is the assistant's.

    Raises ApiError where that ends with a call or with reasoning, which no text continues.
    """
    if not messages or messages[-1].role != "assistant":
        return False
    content = messages[-1].content
    if not isinstance(content, str) and (not content or content[-1].type != "text"):
        at = f"messages[{len(messages) - 1}].content"
        _refuse(at, "the last message is the assistant's, which must end with a text to continue")
    return True


def _tools(tools: Sequence[MessageTool]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise ApiError(
                400,
                f"tools[{i}].type: {tool.type[:64]!r} is a tool of Anthropic's own servers; this "
                "server has none, send tools of type 'custom'",
                param=f"tools[{i}].type",
                code="unsupported_parameter",
            )
        if tool.input_schema is None:
            _refuse(f"tools[{i}].input_schema", "is required of a tool")
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        given = {name: value for name, value in function.items() if value is not None}
        found.append({"type": "function", "function": given})
    return found


def _choice(choice: ToolChoice | None) -> str | dict[str, object] | None:
    if choice is None:
        return None
    if (choice.name is not None) != (choice.type == "tool"):
        _refuse("tool_choice.name", "belongs to tool_choice of the type 'tool', which needs it")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _parallel(choice: ToolChoice | None) -> bool | None:
    return False if choice is not None and choice.disable_parallel_tool_use else None


def _format(request: Asked) -> JsonSchemaFormat | None:
    if request.output_config is None or request.output_config.format is None:
        return None
    return JsonSchemaFormat(NamedSchema(name="", schema=request.output_config.format.schema))


def _messages(request: Asked) -> list[Message]:
    """A chat's messages: results of tools are messages of their own, neighbours of one role are
    one message."""
    system = request.system
    messages: list[Message] = []
    if system:
        text = system if isinstance(system, str) else _SEPARATOR.join(b.text for b in system)
        messages.append(Message(role="system", content=text))
    if not request.messages:
        _refuse("messages", "must hold at least one message")
    for i, message in enumerate(request.messages):
        for part in _parts(message, f"messages[{i}]"):
            if messages and messages[-1].role == part.role and part.role != "tool":
                messages[-1] = _joined(messages[-1], part)
            else:
                messages.append(part)
    return messages


def _joined(first: Message, second: Message) -> Message:
    """Two messages of one role as one."""
    texts = [text for text in (first.content, second.content) if isinstance(text, str) and text]
    thoughts = [each for each in (first.reasoning_content, second.reasoning_content) if each]
    return Message(
        role=first.role,
        content=_SEPARATOR.join(texts) if texts else first.content,
        reasoning_content=_SEPARATOR.join(thoughts) or None,
        tool_calls=[*(first.tool_calls or []), *(second.tool_calls or [])] or None,
    )


def _parts(message: InputMessage, where: str) -> Iterator[Message]:
    """The messages that one message of the dialect is."""
    if isinstance(message.content, str):
        yield Message(role=message.role, content=message.content)
        return
    if not message.content:
        _refuse(f"{where}.content", "must hold at least one block")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MessageCall] = []
    for i, block in enumerate(message.content):
        at = f"{where}.content[{i}]"
        _check(block, message.role, at)
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block))
        else:
            if texts:
                yield Message(role="user", content=_SEPARATOR.join(texts))
                texts = []
            content = _result(block, at)
            yield Message(role="tool", tool_call_id=block.tool_use_id, content=content)
    if texts or thoughts or calls:
        yield Message(
            role=message.role,
            content=_SEPARATOR.join(texts) if texts or message.role != "assistant" else None,
            reasoning_content=_SEPARATOR.join(thoughts) or None,
            tool_calls=calls or None,
        )


def _call(block: InputBlock) -> MessageCall:
    assert block.id is not None
    assert block.name is not None
    arguments = msgspec.json.encode(block.input).decode()
    return MessageCall(id=block.id, function=MessageFunction(name=block.name, arguments=arguments))


def _result(block: InputBlock, where: str) -> str:
    """What a tool has returned, as text."""
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    texts = []
    for i, part in enumerate(block.content):
        at = f"{where}.content[{i}]"
        _check(part, "system", at)  # texts alone
        texts.append(part.text or "")
    return _SEPARATOR.join(texts)


def _check(block: InputBlock | ResultBlock, role: str, where: str) -> None:
    """Raise ApiError for a block that is unlike its type, or whose type is unlike its role."""
    if block.type not in _FIELDS:
        why = (
            "reasoning is encrypted by its server alone; leave the block out"
            if block.type == "redacted_thinking"
            else "this model reads text only"
        )
        raise ApiError(
            400,
            f"{where} is of type {block.type!r}; {why}",
            param=where,
            code="unsupported_content",
        )
    if block.type not in _OWNERS[role]:
        _refuse(where, f"a block of type {block.type!r} does not belong here")
    own = _FIELDS[block.type]
    for name in block.__struct_fields__:
        value = getattr(block, name)
        if name == "type":
            continue
        if value is None and name in own and name not in _OPTIONAL:
            _refuse(f"{where}.{name}", f"is required of a block of type {block.type!r}")
        if value is not None and name not in own:
            _refuse(f"{where}.{name}", f"does not belong to a block of type {block.type!r}")


def _refuse(param: str, why: str) -> NoReturn:
    raise ApiError(400, f"{param}: {why}", param=param)

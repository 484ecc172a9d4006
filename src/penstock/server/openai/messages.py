"""Turns the messages of a chat into a prompt, rendered and tokenized in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.parsing.described_tools import with_described_tools
from penstock.parsing.forms import ChannelForm
from penstock.parsing.history import as_template_reads
from penstock.parsing.styles import Styles
from penstock.server.engine import Engine
from penstock.server.errors import ApiError
from penstock.server.openai.protocol import ChatRequest, Message, MessageCall
from penstock.server.openai.tools import check_nesting

_BUILTIN: Final = "builtin_tools"

TemplateMessage = dict[str, Any]
"""Role, content, and name, tool_call_id, tool_calls or reasoning_content where given."""


async def chat_prompt(
    request: ChatRequest,
    engine: Engine,
    styles: Styles,
    tools: Sequence[Mapping[str, Any]] = (),
    tenant: str = "",
) -> list[int]:
    """Return the prompt's token ids. ``tools`` are shown to the model, by its chat template or as
    ``styles`` have it; ``tenant`` is the caller.

    Raises ApiError or RequestError naming the message at fault.
    """
    if not request.messages:
        raise ApiError(400, "messages must hold at least one message", param="messages")
    templates = engine.tokenizer.settings.chat_templates
    _check_builtin(request, styles)
    developer = "developer" in templates.get("default", "")
    messages: Sequence[Mapping[str, Any]] = [
        _template_message(message, f"messages[{i}]", developer)
        for i, message in enumerate(request.messages)
    ]
    style = styles.tools
    if style is not None and style.described:
        messages = with_described_tools(messages, tools, style, styles.system_role)
        tools = ()
    messages = as_template_reads(messages, style, "\n".join(templates.values()))
    return await engine.inputs.encode_chat(
        messages,
        tools,
        request.chat_template_kwargs or {},
        add_generation_prompt=(
            not request.continue_final_message
            if request.add_generation_prompt is None
            else request.add_generation_prompt
        ),
        continue_final_message=bool(request.continue_final_message),
        any_length=request.truncate_prompt_tokens is not None,
        # The template has written them itself.
        add_special_tokens=request.add_special_tokens is True,
        tenant=tenant,
    )


def _check_builtin(request: ChatRequest, styles: Styles) -> None:
    """Raise ApiError for tools that gpt-oss has learned to call, and somebody else has to run."""
    style = styles.tools
    if style is None or not isinstance(style.form, ChannelForm):
        return
    if (request.chat_template_kwargs or {}).get(_BUILTIN):
        param = f"chat_template_kwargs.{_BUILTIN}"
        raise ApiError(
            400,
            f"{param}: the server runs no browser and no Python, and calls of these are no calls "
            "of functions; leave it out, and describe functions of your own in tools",
            param=param,
        )


def _template_message(message: Message, where: str, developer: bool) -> TemplateMessage:
    """Convert a message for chat templates; ``developer`` says whether they know that role."""
    if message.role == "tool" and not message.tool_call_id:
        raise ApiError(400, f"{where}: a tool message needs tool_call_id", param=where)
    if message.role != "tool" and message.tool_call_id is not None:
        raise ApiError(400, f"{where}.tool_call_id belongs to tool messages only", param=where)
    if message.refusal is not None and message.role != "assistant":
        raise ApiError(400, f"{where}.refusal belongs to assistant messages only", param=where)
    for name in ("tool_calls", "reasoning_content"):
        if getattr(message, name) is not None and message.role != "assistant":
            raise ApiError(
                400,
                f"{where}.{name} belongs to assistant messages only",
                param=f"{where}.{name}",
            )
    role = "system" if message.role == "developer" and not developer else message.role
    rendered: TemplateMessage = {"role": role, "content": _text(message, where)}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        rendered["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        rendered["tool_calls"] = [
            _template_call(call, f"{where}.tool_calls[{i}]")
            for i, call in enumerate(message.tool_calls)
        ]
    return rendered


def _template_call(call: MessageCall, where: str) -> dict[str, Any]:
    """Convert a call: templates expect its arguments as an object, OpenAI's API has them as
    text."""
    arguments = read_arguments(call.function.arguments, f"{where}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def read_arguments(text: str, at: str) -> dict[str, Any]:
    """Parse the arguments of a call in a message. Raises ApiError naming the field ``at``."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ApiError(400, f"{at}: not JSON: {error}", param=at) from None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"{at}: must be a JSON object", param=at)
    check_nesting(arguments, at)
    return arguments


def _text(message: Message, where: str) -> str:
    content = message.content
    if content is None and message.role == "assistant" and message.refusal is not None:
        return message.refusal
    if content is None and message.role == "assistant":
        return ""  # an answer may be calls alone, reasoning alone, or empty
    if content is None:
        raise ApiError(400, f"{where}.content is required", param=f"{where}.content")
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        at = f"{where}.content[{i}]"
        kind = part.get("type")
        if kind not in ("text", "refusal") or (kind == "refusal" and message.role != "assistant"):
            raise ApiError(
                400,
                f"{at} is of type {kind!r}; this model reads text only",
                param=at,
                code="unsupported_content",
            )
        text = part.get(kind)
        if not isinstance(text, str) or len(part) != 2:
            raise ApiError(
                400, f"{at} must have exactly the fields type and {kind} (text)", param=at
            )
        texts.append(text)
    return "".join(texts)

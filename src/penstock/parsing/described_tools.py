"""Tools in the messages of a chat, for templates that show none to the model.

The tools are described in the system message, calls are written into the assistant's text as the
style has them, and what calls returned becomes text of the user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.parsing.forms import JsonForm
from penstock.parsing.style import ToolStyle

TemplateMessage = Mapping[str, Any]
"""A message as chat templates read it: role, content, and what else belongs to its role. Calls are
in ``tool_calls``, with arguments as an object."""

_DESCRIPTION = """\
You can call functions. These are described below, one a line, each with a JSON schema of its \
parameters:

{functions}

To call a function, answer with its name and its arguments, written as:

{example}

What it returns comes in the next message, between <tool_response> and </tool_response>. When no \
function is of use, answer in plain text."""


def with_described_tools(
    messages: Sequence[TemplateMessage],
    tools: Sequence[Mapping[str, Any]],
    style: ToolStyle,
    system_role: bool,
) -> list[TemplateMessage]:
    """``messages`` for a template that knows the roles ``user`` and ``assistant`` and, by
    ``system_role``, ``system``; without that role the first message of the user has the
    description. ``tools`` are in OpenAI's form, and ``style`` is one whose calls are marked JSON
    objects.
    """
    said = _without_tools(messages, style)
    if not tools:
        return said
    # The same for any tool_choice, so that the prompt's cache serves all of them.
    text = description(tools, style)
    role = "system" if system_role else "user"
    if system_role and (not said or said[0]["role"] != "system"):
        return [{"role": "system", "content": text}, *said]
    for i, message in enumerate(said):
        if message["role"] == role:
            # What the client says comes last for the user, whose question it is, and first for
            # the system.
            parts = [message["content"], text] if system_role else [text, message["content"]]
            said[i] = {**message, "content": _joined(*parts)}
            return said
    return [{"role": role, "content": text}, *said]


def description(tools: Sequence[Mapping[str, Any]], style: ToolStyle) -> str:
    """What a model is told of ``tools``."""
    functions = "\n".join(_json(_shown(tool["function"])) for tool in tools)
    return _DESCRIPTION.format(functions=functions, example=written_call("NAME", {}, style))


def written_call(name: str, arguments: Mapping[str, Any], style: ToolStyle) -> str:
    """A call as the model is to write it."""
    form = style.form
    assert isinstance(form, JsonForm)
    call = _json({form.name_key: name, form.arguments_key: arguments})
    return f"{style.opening}{style.around}{call}{style.around}{style.closing}"


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    """What is of use to a model: ``strict`` is for the grammar."""
    fields = ("name", "description", "parameters")
    return {field: function[field] for field in fields if function.get(field) is not None}


def _without_tools(messages: Sequence[TemplateMessage], style: ToolStyle) -> list[TemplateMessage]:
    said: list[TemplateMessage] = []
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    returned = False  # the last message begins with what a call returned
    for message in messages:
        if message["role"] == "tool":
            name = names.get(message.get("tool_call_id", ""), "a function")
            text = f"<tool_response>\n{name} returned:\n{message['content']}\n</tool_response>"
            # Many templates want the user and the assistant by turns.
            if returned:
                text = f"{said.pop()['content']}\n{text}"
            said.append({"role": "user", "content": text})
            returned = True
        elif message["role"] == "user" and returned:
            said[-1] = {**message, "content": _joined(said[-1]["content"], message["content"])}
        else:
            calls = message.get("tool_calls") or []
            names |= {call["id"]: call["function"]["name"] for call in calls}
            said.append(_with_written_calls(message, style) if calls else message)
            returned = False
    return said


def _with_written_calls(message: TemplateMessage, style: ToolStyle) -> TemplateMessage:
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [written_call(each["name"], each["arguments"], style) for each in functions]
    others = {field: value for field, value in message.items() if field != "tool_calls"}
    return {**others, "content": _joined(message["content"], style.between.join(calls))}


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

"""Earlier calls, results and reasoning in a chat's messages, as chat templates read them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.parsing.forms import ChannelForm
from penstock.parsing.style import ToolStyle

TemplateMessage = Mapping[str, Any]

_FOR_REASONING: Final = ("thinking", "reasoning")
"""Other names of a message's ``reasoning_content``."""
_UNKNOWN: Final = "unknown"
"""The function of a result that nobody called for."""
_SAID: Final = ("content", "tool_calls", "reasoning_content", *_FOR_REASONING)


def as_template_reads(
    messages: Sequence[TemplateMessage], style: ToolStyle | None, template: str
) -> list[TemplateMessage]:
    """``messages`` with what ``template`` reads of them under other names, and with calls and
    results in the form that templates of the ``style`` expect."""
    names = [name for name in _FOR_REASONING if _reads(template, name)]
    told = [_with_reasoning(message, names) for message in messages]
    if style is None:
        return told
    if style.ids == "numbered":
        told = with_numbered_ids(told)
    if style.results_named:
        told = _with_named_results(told)
        if "tool_responses" in template and "tool_call_id" not in template:
            told = _with_results_in_turns(told)
    if style.arguments_as_text:
        told = list(map(_with_texts, told))
    if isinstance(style.form, ChannelForm):
        told = _one_by_one(_with_one_instruction(told))
    return told


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


def _with_reasoning(message: TemplateMessage, names: Sequence[str]) -> TemplateMessage:
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {**message, **dict.fromkeys(names, reasoning)}


def _reads(template: str, field: str) -> bool:
    """Whether a template seems to read a message's ``field``."""
    return any(written in template for written in (f".{field}", f"'{field}'", f'"{field}"'))


def _with_named_results(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Results with the names of the functions that returned them, where the client left them
    out."""
    names: dict[str, str] = {}
    told: list[TemplateMessage] = []
    for message in messages:
        for call in message.get("tool_calls") or []:
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id", ""))
        if name is not None and not message.get("name"):
            message = {**message, "name": name}
        told.append(message)
    return told


def _with_results_in_turns(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Results as a part of the messages that called for them; JSON objects as what they are."""
    told: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool" and told and told[-1].get("tool_calls"):
            result = {
                "name": message.get("name") or _UNKNOWN,
                "response": _json_object(message["content"]),
            }
            told[-1].setdefault("tool_responses", []).append(result)
        else:
            told.append(dict(message))
    return list(told)


def _json_object(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def _with_texts(message: TemplateMessage) -> TemplateMessage:
    """Arguments as JSON."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _with_one_instruction(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Such templates read instructions in the first message alone: those of all that come before
    the user's become one."""
    told = list(messages)
    while len(told) > 1 and all(each["role"] in ("system", "developer") for each in told[:2]):
        first, second = told[:2]
        both = "\n\n".join(each["content"] for each in (first, second) if each["content"])
        told[:2] = [{**first, "content": both}]
    return told


def _one_by_one(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Each call in a message of its own, with its result behind it: such templates show the first
    of a message's calls, and take what comes behind it for what that returned. What was thought
    before the first is joined with what was said."""
    told: list[TemplateMessage] = []
    waiting = deque(messages)
    while waiting:
        message = waiting.popleft()
        calls = message.get("tool_calls")
        if not calls:
            told.append(message)
            continue
        results = []
        while waiting and waiting[0]["role"] == "tool":
            results.append(waiting.popleft())
        told += _turns(message, calls, results)
    return told


def _turns(
    message: TemplateMessage, calls: Sequence[Any], results: Sequence[TemplateMessage]
) -> Iterator[TemplateMessage]:
    left = list(results)
    for i, call in enumerate(calls):
        plain = {key: value for key, value in message.items() if key not in _SAID}
        said = [message.get("reasoning_content"), message["content"]] if i == 0 else []
        text = "\n\n".join(part for part in said if part)
        yield {**plain, "content": "", "thinking": text, "tool_calls": [call]}
        for result in results:
            if result.get("tool_call_id") == call["id"] and result in left:
                left.remove(result)
                yield result
    yield from left

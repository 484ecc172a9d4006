"""From the messages of a chat to a prompt.

A special token's name inside a message is text, not a token: what a user writes cannot end their
turn or open another's. Templates are programs that may inspect and trim the text, so the names
are replaced by stand-ins while the template runs, and put back as text when its result is
tokenized.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import RequestError
from penstock.server.engine import Engine
from penstock.server.openai.errors import ApiError
from penstock.server.openai.protocol import ChatRequest, Message, MessageCall
from penstock.server.openai.tools import check_nesting
from penstock.tokenizer import Tokenizer

TemplateMessage = dict[str, Any]
"""Role, content, and name, tool_call_id, tool_calls or reasoning_content where given."""

_PRIVATE_USE = ("\U000f0000", "\U000ffffe")
"""Unicode's plane 15, first and past the last: 65 thousand characters that mean nothing."""


async def chat_prompt(
    request: ChatRequest, engine: Engine, tools: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Token ids of the prompt, which shows ``tools`` to the model.

    Raises ApiError or RequestError naming the message at fault.
    """
    if not request.messages:
        raise ApiError(400, "messages must hold at least one message", param="messages")
    tokenizer = engine.tokenizer
    developer = "developer" in tokenizer.settings.chat_templates.get("default", "")
    messages = [
        _template_message(message, f"messages[{i}]", developer)
        for i, message in enumerate(request.messages)
    ]
    add_special = request.add_special_tokens is True  # the template has written them itself
    options = request.chat_template_kwargs or {}
    opening = request.add_generation_prompt is not False
    # Rendering runs somebody else's program on input of any size: never on the event loop.
    return await asyncio.to_thread(
        tokenize_chat, tokenizer, messages, opening, options, add_special, tools
    )


def tokenize_chat(
    tokenizer: Tokenizer,
    messages: Sequence[TemplateMessage],
    add_generation_prompt: bool,
    template_options: dict[str, Any],
    add_special_tokens: bool,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Render and tokenize, with special tokens in the messages and tools as text.

    Where no message names a special token this is exactly ``encode(apply_chat_template())``.
    Otherwise the stretches between special tokens that hold such names are tokenized apart.
    """
    names = {tokenizer.token_text(token) for token in tokenizer.special_ids} - {""}
    special = re.compile("|".join(re.escape(n) for n in sorted(names, key=len, reverse=True)))
    written = list(_texts([*messages, *tools]))
    shield = _Shield(special, written) if names else None
    if shield is None or not shield.needed:
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt, list(tools) or None, template_options=template_options
        )
        return tokenizer.encode(text, add_special_tokens)
    text = tokenizer.apply_chat_template(
        _with_texts(messages, shield.hide),
        add_generation_prompt,
        _with_texts(tools, shield.hide) or None,
        template_options=template_options,
    )
    tokens = tokenizer.encode("", add_special_tokens)
    plain = ""
    for stretch, is_special in _split(text, special):
        if is_special or not shield.holds(stretch):
            plain += stretch
            continue
        if plain:
            tokens += tokenizer.encode(plain, False)
            plain = ""
        tokens += tokenizer.encode(shield.reveal(stretch), False, False)
    return tokens + tokenizer.encode(plain, False) if plain else tokens


class _Shield:
    """Swaps each name of a special token for one private-use character, and back.

    The characters are ones that no message contains. Being single and no space, they survive
    whatever a template does to text: trimming, cutting, splitting.
    """

    def __init__(self, special: re.Pattern[str], texts: Sequence[str]) -> None:
        self._special = special
        names = {name for text in texts for name in special.findall(text)}
        taken = {char for text in texts for char in text if char >= _PRIVATE_USE[0]}
        free = (
            char
            for char in map(chr, range(ord(_PRIVATE_USE[0]), ord(_PRIVATE_USE[1])))
            if char not in taken
        )
        self._stand_ins = dict(zip(names, free, strict=False))
        if len(self._stand_ins) < len(names):
            raise RequestError(
                "the messages hold names of special tokens and every character of Unicode's "
                "plane 15, which leaves none to stand in for the names",
                "messages",
            )
        self._names = {ord(char): name for name, char in self._stand_ins.items()}

    @property
    def needed(self) -> bool:
        return bool(self._names)

    def hide(self, text: str) -> str:
        return self._special.sub(lambda match: self._stand_ins[match[0]], text)

    def holds(self, text: str) -> bool:
        return any(char in text for char in self._stand_ins.values())

    def reveal(self, text: str) -> str:
        return text.translate(self._names)


def _texts(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_with_texts(item, change) for item in value]
    return value


def _split(text: str, special: re.Pattern[str]) -> list[tuple[str, bool]]:
    """``text`` cut at special tokens: (stretch, whether it is one)."""
    parts, at = [], 0
    for match in special.finditer(text):
        if match.start() > at:
            parts.append((text[at : match.start()], False))
        parts.append((match[0], True))
        at = match.end()
    if at < len(text):
        parts.append((text[at:], False))
    return parts


def _template_message(message: Message, where: str, developer: bool) -> TemplateMessage:
    """The message as chat templates expect it; ``developer`` says whether they know that role."""
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
    """Templates expect the arguments as an object, where OpenAI's API has it as text."""
    arguments = read_arguments(call.function.arguments, f"{where}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def read_arguments(text: str, at: str) -> dict[str, Any]:
    """Those of a call in a message. Raises ApiError naming the field ``at``."""
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

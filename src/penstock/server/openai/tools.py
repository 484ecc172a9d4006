"""The tools of a chat request: what may be called, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from penstock.server.openai.errors import ApiError
from penstock.server.openai.protocol import ChatRequest
from penstock.server.parsing.styles import Styles, ToolStyle

MAX_TOOLS = 128
"""In one request, as in OpenAI's API."""
MAX_NESTING = 100
"""Arrays and objects inside each other, in tools and in arguments."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolUse:
    """Which calls a request's answer may hold."""

    style: ToolStyle
    tools: Sequence[Mapping[str, Any]]
    """As the request has them, for the chat template."""
    names: frozenset[str]
    single: bool
    """Whether the answer ends with its first call."""


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    function: _Function


def tool_use(request: ChatRequest, styles: Styles) -> ToolUse | None:
    """None where nothing may be called. Raises ApiError naming the field at fault."""
    given = request.tools
    if given is not None and not isinstance(given, list):
        _refuse("tools", "must be a list of tools")
    tools: list[Any] = given or []
    if len(tools) > MAX_TOOLS:
        _refuse("tools", f"holds {len(tools)} tools; at most {MAX_TOOLS} are taken")
    names: list[str] = []
    for i, tool in enumerate(tools):
        name = _checked(tool, f"tools[{i}]")
        if name in names:
            _refuse(f"tools[{i}].function.name", f"{name!r} is the name of another tool too")
        names.append(name)
    choice = _choice(request.tool_choice, names)
    parallel = request.parallel_tool_calls
    if parallel is not None and not isinstance(parallel, bool):
        _refuse("parallel_tool_calls", "must be true or false")
    if not tools or choice == "none":
        return None
    if not styles.template_takes_tools:
        _unsupported("tools", "the chat template of this model shows no tools to it")
    if styles.tools is None:
        _unsupported(
            "tools",
            "how this model writes calls is not known to the server; name it when it is started, "
            "with --tool-call-parser",
        )
    return ToolUse(styles.tools, tools, frozenset(names), parallel is False)


def check_nesting(value: object, param: str) -> None:
    """Raise ApiError for JSON nested deeper than what walks it can follow."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    _refuse(param, f"nested more than {MAX_NESTING} deep")


def _checked(given: object, where: str) -> str:
    """The name of a valid tool."""
    check_nesting(given, where)
    if isinstance(given, dict) and given.get("type") != "function":
        _refuse(f"{where}.type", "must be 'function', the only type of tool here")
    try:
        function = msgspec.convert(given, _Tool).function
    except msgspec.ValidationError as error:
        _refuse(where, f"is no tool: {str(error)[:200].replace('`', '')}")
    at = f"{where}.function"
    if not _NAME.fullmatch(function.name):
        _refuse(f"{at}.name", "must be 1 to 64 letters, digits, underscores or dashes")
    if function.strict:
        _unsupported(f"{at}.strict", "arguments are not bound to the schema here; leave strict out")
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        _refuse(f"{at}.parameters.type", "must be 'object': arguments are a JSON object")
    properties = (function.parameters or {}).get("properties", {})
    if not isinstance(properties, dict):
        _refuse(f"{at}.parameters.properties", "must be an object of schemas by name")
    for name, schema in properties.items():
        if not isinstance(schema, dict | bool):
            _refuse(f"{at}.parameters.properties.{name[:64]}", "must be a schema")
    required = (function.parameters or {}).get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(f"{at}.parameters.required", "must be a list of names")
    return function.name


def _choice(given: object, names: Sequence[str]) -> str:
    """``auto`` or ``none``."""
    if given in (None, "auto", "none"):
        return "none" if given == "none" else "auto"
    if given == "required":
        if not names:
            _refuse("tool_choice", "'required' needs tools")
        _unsupported(
            "tool_choice", "'required' needs constrained decoding, which this server has not"
        )
    name: object = None
    if isinstance(given, dict) and given.get("type") == "function" and len(given) == 2:
        function = given.get("function")
        name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        _refuse("tool_choice", "must be 'none', 'auto', 'required', or an object that names a tool")
    if name not in names:
        _refuse("tool_choice", f"names {name[:64]!r}, which is none of the tools")
    _unsupported(
        "tool_choice", "naming a tool needs constrained decoding, which this server has not"
    )


def _refuse(param: str, why: str) -> NoReturn:
    raise ApiError(400, f"{param}: {why}", param=param)


def _unsupported(param: str, why: str) -> NoReturn:
    raise ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")

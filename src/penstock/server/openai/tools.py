"""The tools of a chat request: which calls are allowed or required, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from penstock.parsing.asked_calls import Calls, Function
from penstock.parsing.style import ToolStyle
from penstock.parsing.styles import Styles
from penstock.server.errors import ApiError
from penstock.server.openai.names import CHAT, Names
from penstock.server.openai.protocol import ChatRequest

MAX_TOOLS = 128
"""Most tools in one request, as in OpenAI's API."""
MAX_NESTING = 100
"""Deepest nesting of arrays and objects in tools and arguments."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class ToolUse:
    """Which calls a request's answer may hold."""

    style: ToolStyle
    tools: Sequence[Mapping[str, Any]]
    """The tools that the chat template shows to the model, as the request gave them."""
    functions: Sequence[Function]
    """The functions that the model may call."""
    forced: bool
    """Whether the answer must be a call."""
    single: bool
    """Whether the answer ends with its first call."""
    strict: bool
    """Whether the arguments of any function are constrained to its schema."""

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the functions that may be called, as the request gave them, by name."""
        callable_ = {function.name for function in self.functions}
        shown = [tool["function"] for tool in self.tools]
        return {
            function["name"]: function.get("parameters") or {}
            for function in shown
            if function["name"] in callable_
        }

    @property
    def calls(self) -> Calls:
        """Return what the answer's grammar has to say of calls."""
        return Calls(self.style, self.functions, self.forced, self.single)

    @property
    def binds(self) -> bool:
        """Whether the answer must be constrained during generation."""
        return self.forced or self.single or self.strict or self.style.described


@dataclass(frozen=True)
class _Choice:
    """The parsed ``tool_choice``."""

    mode: Mode
    names: frozenset[str]
    """Names of the functions that the model may call."""
    shown: frozenset[str]
    """Names of the functions that are shown to the model."""
    once: bool = False
    """Whether exactly one call is meant, as when the choice names a function."""


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    function: _Function


class _Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


def tool_use(request: ChatRequest, styles: Styles, names: Names = CHAT) -> ToolUse | None:
    """Return how a request uses tools; None if nothing may be called. Raises ApiError naming the
    field at fault."""
    tools = request.tools or []
    if len(tools) > MAX_TOOLS:
        _refuse(names.tools, f"holds {len(tools)} tools; at most {MAX_TOOLS} are taken")
    functions: dict[str, _Function] = {}
    for i, tool in enumerate(tools):
        function = _checked(tool, f"{names.tools}[{i}]", names)
        if function.name in functions:
            why = f"{function.name!r} is the name of another tool too"
            _refuse(f"{names.tools}[{i}]{names.function}.name", why)
        functions[function.name] = function
    choice = _choice(request.tool_choice, frozenset(functions), names.choice)
    if not tools or choice.mode == "none":
        return None
    style = styles.tools
    if style is None or not styles.takes_tools:
        _unsupported(names.tools, _untaken(styles))
    forced = choice.mode == "required"
    callable_ = [
        Function(
            function.name,
            _schema(function) if _bound(function, style, forced) else {"type": "object"},
            f"{names.tools}[{i}]{names.function}.{names.parameters}",
        )
        for i, function in enumerate(functions.values())
        if function.name in choice.names
    ]
    shown = [tool for tool, name in zip(tools, functions, strict=True) if name in choice.shown]
    # A model that has not learned to call goes on with the same call.
    several = request.parallel_tool_calls is True or (
        request.parallel_tool_calls is None and not style.described
    )
    return ToolUse(
        style,
        shown,
        callable_,
        forced,
        single=choice.once or not several,
        strict=any(functions[name].strict for name in choice.shown),
    )


def check_nesting(value: object, param: str) -> None:
    """Raise ApiError for JSON that is nested more deeply than the server's recursive code
    allows."""
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


def _untaken(styles: Styles) -> str:
    """Why this server takes no tools, and what makes it take them."""
    if not styles.template_takes_tools:
        return (
            "the chat template of this model shows no tools to it; start the server with "
            "--tool-call-parser generic, and they are described in the system message"
        )
    return (
        "how this model writes calls is not known to the server; name it when it is started, with "
        "--tool-call-parser, where generic is for all models"
    )


def _bound(function: _Function, style: ToolStyle, forced: bool) -> bool:
    """Whether the arguments of a call must be as the function's schema says."""
    return forced or bool(function.strict) or (style.described and function.strict is None)


def _schema(function: _Function) -> Mapping[str, Any]:
    """Return the schema of the arguments, an object; a function without parameters takes none."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **function.parameters}


def _checked(given: Mapping[str, Any], where: str, names: Names) -> _Function:
    check_nesting(given, where)
    if given.get("type") != "function":
        _refuse(f"{where}.type", "must be 'function', the only type of tool here")
    try:
        function = msgspec.convert(given, _Tool).function
    except msgspec.ValidationError as error:
        _refuse(where, f"is no tool: {str(error)[:200].replace('`', '')}")
    at = f"{where}{names.function}"
    schema = f"{at}.{names.parameters}"
    if not _NAME.fullmatch(function.name):
        _refuse(f"{at}.name", "must be 1 to 64 letters, digits, underscores or dashes")
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        _refuse(f"{schema}.type", "must be 'object': arguments are a JSON object")
    properties = (function.parameters or {}).get("properties", {})
    if not isinstance(properties, dict):
        _refuse(f"{schema}.properties", "must be an object of schemas by name")
    for name, of_property in properties.items():
        if not isinstance(of_property, dict | bool):
            _refuse(f"{schema}.properties.{name[:64]}", "must be a schema")
    required = (function.parameters or {}).get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(f"{schema}.required", "must be a list of names")
    return function


def _choice(given: object, names: frozenset[str], param: str) -> _Choice:
    """``names`` are those of all functions; ``param`` is what the client calls ``given``."""
    if given is None or given == "auto":
        return _Choice("auto", names, names)
    if given == "none":
        return _Choice("none", frozenset(), frozenset())
    if given == "required":
        if not names:
            _refuse(param, "'required' needs tools")
        return _Choice("required", names, names)
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return _allowed(given, names, param)
    name = _named(given)
    if name is None:
        _refuse(
            param,
            "must be 'none', 'auto', 'required', or an object that names a tool or allowed_tools",
        )
    return _Choice("required", frozenset([_known(name, names, param)]), names, once=True)


def _allowed(given: Mapping[str, Any], names: frozenset[str], param: str) -> _Choice:
    """Return the choice for ``allowed_tools``: the other tools are treated as absent from the
    request."""
    try:
        allowed = msgspec.convert(given.get("allowed_tools"), _Allowed)
    except msgspec.ValidationError as error:
        _refuse(f"{param}.allowed_tools", str(error)[:200].replace("`", ""))
    found = [_named(tool) for tool in allowed.tools]
    if len(given) > 2 or not found or None in found:
        why = "must hold a mode and a list of tools, each with its type and its function's name"
        _refuse(f"{param}.allowed_tools", why)
    some = frozenset(_known(name, names, param) for name in found if name is not None)
    return _Choice(allowed.mode, some, some)


def _named(given: object) -> str | None:
    """The name in ``{"type": "function", "function": {"name": ...}}``; None in anything else."""
    if not isinstance(given, dict) or given.get("type") != "function" or len(given) != 2:
        return None
    function = given.get("function")
    name = function.get("name") if isinstance(function, dict) and len(function) == 1 else None
    return name if isinstance(name, str) else None


def _known(name: str, names: frozenset[str], param: str) -> str:
    if name not in names:
        _refuse(param, f"names {name[:64]!r}, which is none of the tools")
    return name


def _refuse(param: str, why: str) -> NoReturn:
    raise ApiError(400, f"{param}: {why}", param=param)


def _unsupported(param: str, why: str) -> NoReturn:
    raise ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")

"""Calls as models of each style write them, for parsers to read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.parsing.forms import (
    ChannelForm,
    JsonForm,
    KeyForm,
    NamedForm,
    PythonForm,
    TagForm,
    ValueForm,
)
from penstock.parsing.style import ToolStyle

Call = tuple[str, Mapping[str, Any]]
"""Its name, and its arguments."""


def answer_with(style: ToolStyle, calls: Sequence[Call]) -> str:
    """An answer that consists of calls."""
    if isinstance(style.form, ChannelForm):
        return f"{style.form.start}{style.form.author}".join(
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            f"{_json(arguments)}<|call|>"
            for name, arguments in calls
        )
    written = [_written(style, i, call) for i, call in enumerate(calls)]
    if style.lists:
        return f"{style.opening}[{style.between.join(written)}]{style.closing}"
    if style.bare:
        return style.between.join(written)
    marked = style.between.join(
        f"{style.opening}{style.around}{call}{style.around}{style.closing}" for call in written
    )
    begin, end = style.section or ("", "")
    return f"{begin}{marked}{end}"


def _written(style: ToolStyle, i: int, call: Call) -> str:
    name, arguments = call
    match style.form:
        case JsonForm(name_key, arguments_key):
            return _json({name_key: name, arguments_key: arguments})
        case KeyForm():
            return _json({name: arguments})
        case NamedForm() as form:
            number = f":{i}" if form.numbered else ""
            before, after = "".join(form.before_name), "".join(form.after_name)
            return f"{before}{name}{number}{after}{_json(arguments)}{form.after_arguments}"
        case PythonForm():
            return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        case TagForm() as form:
            before = "".join(form.before) + form.before_name
            body = "".join(
                f"{form.before_key}{key}{form.behind_key(isinstance(value, str))}"
                f"{form.before_value}"
                f"{value if isinstance(value, str) else _json(value)}{form.after_value}"
                for key, value in arguments.items()
            )
            return f"{before}{name}{form.after_name}{body}{form.end}"
        case ValueForm() as form:
            return f"{form.before_name}{name}{_value(arguments, form.quote)}"
    raise AssertionError(style.form)


def _value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(_value(each, quote) for each in value)}]"
    if isinstance(value, Mapping):
        members = (f"{key}:{_value(each, quote)}" for key, each in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

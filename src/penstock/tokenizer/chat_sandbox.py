"""Jinja's immutable sandbox, with bounds: a chat template is somebody else's code.

What one operation may multiply, pad, join or loop over is limited, and a template that is only
loaded computes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 25
"""Longest prompt, and longest string or list made in one operation: beyond any context window."""
MAX_LOOP_ITEMS = 1_000_000
"""Maximum number of items in all ``range`` calls of one rendering."""

_WIDE_FIELD = re.compile(r"\d{7,}|\*|:[^{}]*\{")
"""A width of seven digits, or one that is taken from an argument."""
_MAX_INTEGER_BITS = 1 << 16


class TooLarge(Exception):
    """The template asked for more than the limits above."""


class Refused(Exception):
    """The template called ``raise_exception``."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what one operation may build, and what templates may expect of
    transformers."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # it would carry out operations on constants here and now
            extensions=["jinja2.ext.loopcontrols", _GenerationBlocks],
        )
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format
        self.filters["center"] = _bounded(self.filters["center"])
        self.filters["indent"] = _bounded(self.filters["indent"])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            size, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(size, (str, list, tuple)) and isinstance(times, int):
                _limit(len(size) * times, "a repeated string or list")
            elif isinstance(size, int) and size.bit_length() > _MAX_INTEGER_BITS:
                raise TooLarge("a number of thousands of digits")
        elif operator == "**" and _is_large(left) | _is_large(right):
            raise TooLarge("a power with operands beyond 1000")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "+" and isinstance(left, (str, list, tuple)):
            _limit(len(left), "a string or list")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            _limit(len(owner), "a string")
            for value in (*args, *kwargs.values()):
                if isinstance(value, int):
                    _limit(value, "a padded string")
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's own replacement for ``str.format`` and ``format_map``."""
        replacement = super().wrap_str_format(value)
        if replacement is not None:
            _check_format(value.__self__)
        return replacement

    @staticmethod
    def join_bounded(parts: Iterable[Any]) -> str:
        text = "".join(map(str, parts))
        _limit(len(text), "a string")
        return text


class CodeGenerator(jinja2.compiler.CodeGenerator):
    """Compiles ``a ~ b`` so that repeated doubling hits the limit instead of the memory, and
    nothing but text as constant output: a template that is only loaded computes nothing."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Any, finalize: Any) -> str:
        if not isinstance(node, (nodes.TemplateData, nodes.Const)):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Any) -> None:
        for keyword in node.options:
            self.writeline(f"context.eval_ctx.{keyword.key} = ")
            self.visit(keyword.value, frame)
        frame.eval_ctx.volatile = True  # known when it is rendered

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.join_bounded((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


TemplateEnvironment.code_generator_class = CodeGenerator


class _GenerationBlocks(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class RangeBudget:
    """``range`` for templates; one rendering may loop over MAX_LOOP_ITEMS in total."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_ITEMS

    def __call__(self, *args: int) -> range:
        items = range(*args)
        self._left -= max(len(items), 1)
        if self._left < 0:
            raise TooLarge(f"loops over more than {MAX_LOOP_ITEMS} numbers")
        return items


def _limit(size: int, what: str) -> None:
    if size > MAX_CHARACTERS:
        raise TooLarge(f"{what} of more than {MAX_CHARACTERS} elements")


def _is_large(value: object) -> bool:
    return isinstance(value, int) and abs(value) > 1000


def _check_format(text: str) -> None:
    if _WIDE_FIELD.search(text):
        raise TooLarge("a format field with a computed width, or one of seven digits")


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    _check_format(str(text))
    return str(text) % (kwargs or args)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(text: str, width: int = 80, *args: Any, **kwargs: Any) -> Any:
        if isinstance(width, int):
            _limit(width * (str(text).count("\n") + 1), "a padded string")
        return function(text, width, *args, **kwargs)

    return bounded


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

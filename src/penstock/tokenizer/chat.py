"""Chat templates: Jinja programs that come with a checkpoint and turn messages into a prompt.

The conventions are those of Hugging Face transformers: trimmed blocks, ``raise_exception``,
``strftime_now``, ``tojson`` without HTML escapes, ``break`` and ``continue``, ``{% generation %}``
blocks, and the special tokens as variables. A template is somebody else's code: it runs in
Jinja's immutable sandbox, and what it may multiply, pad or loop over is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.errors import ConfigError, RequestError, TokenizerError, first_line
from penstock.regular_file import read_regular

Message = Mapping[str, Any]

MAX_CHARACTERS = 1 << 25
"""Longest prompt, and longest string or list made in one operation: beyond any context window."""
MAX_SOURCE = 1 << 20
"""Longest template in characters: ten times the longest in use."""
MAX_LOOP_ITEMS = 1_000_000
"""Maximum number of items in all ``range`` calls of one rendering."""

_WIDE_FIELD = re.compile(r"\d{7,}|\*|:[^{}]*\{")
"""A width of seven digits, or one that is taken from an argument."""
_MAX_INTEGER_BITS = 1 << 16


class _TooLarge(Exception):
    """The template asked for more than the limits above."""


class _Refused(Exception):
    """The template called ``raise_exception``."""


class ChatTemplate:
    """A compiled template. Rendering keeps no state; safe to share between threads.

    ``variables`` (``bos_token``, ``eos_token``, ...) are visible to the template. Raises
    TokenizerError if the source is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # it would carry out operations on constants here and now
            extensions=["jinja2.ext.loopcontrols", _GenerationBlocks],
        )
        environment.filters["tojson"] = _to_json
        environment.filters["format"] = _format
        environment.filters["center"] = _bounded(environment.filters["center"])
        environment.filters["indent"] = _bounded(environment.filters["indent"])
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        if len(source) > MAX_SOURCE:
            raise TokenizerError(
                f"the chat template has {len(source)} characters, and {MAX_SOURCE} is the most; "
                "name another with --chat-template"
            )
        try:
            self._template = environment.from_string(source)
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            # Of parsing, or of compiling the Python that it becomes.
            raise TokenizerError(
                f"the chat template is nested too deep or cannot be compiled: {first_line(error)}; "
                "name another with --chat-template"
            ) from None
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise TokenizerError(
                f"the chat template is not valid Jinja (line {line}): {error}; fix it, or name "
                "another with --chat-template"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for ``messages``.

        ``add_generation_prompt`` ends it with the header of the assistant's turn.
        ``continue_final_message`` instead leaves the last message open, to be continued (it must
        then have text content and there is no generation prompt). ``template_options`` are the
        variables that a particular template documents, such as ``enable_thinking``.

        Raises RequestError with the template's own message if it refuses or fails.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                "continue_final_message",
            )
        variables = {
            **self._variables,
            **(template_options or {}),
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": add_generation_prompt,
            "range": _RangeBudget(),
        }
        text = self._run(variables)
        return _open_last(text, messages) if continue_final_message else text

    def _run(self, variables: dict[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                size += len(part)
                if size > MAX_CHARACTERS:
                    raise _TooLarge(f"a prompt of more than {MAX_CHARACTERS} characters")
        except _Refused as error:
            raise RequestError(f"the chat template refused: {error}", "messages") from error
        except (_TooLarge, MemoryError) as error:
            raise RequestError(
                f"the chat template asked for too much: {error}", "messages"
            ) from error
        except RecursionError as error:
            raise RequestError("the chat template recurses without end", "messages") from error
        except Exception as error:  # a template can raise whatever its expressions raise
            raise RequestError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                "messages",
            ) from error
        return "".join(parts)


def read_chat_template(path: Path, named: str) -> str:
    """The template in a file. Raises ConfigError, which calls the file ``named``, where it is no
    template or cannot be read."""
    try:
        source = read_regular(path).decode()
        ChatTemplate(source, {})
    except (OSError, UnicodeDecodeError, TokenizerError) as error:
        raise ConfigError(f"{named} cannot be used: {error}") from error
    if not source.strip():
        raise ConfigError(f"{named} is empty, and every prompt would be")
    return source


def variables_read(source: str) -> frozenset[str]:
    """The variables that a template may read from outside; none if it is not valid."""
    environment = _Environment(
        optimized=False, extensions=["jinja2.ext.loopcontrols", _GenerationBlocks]
    )
    finder = _VariableFinder(environment, None, None)
    try:
        finder.visit(environment.parse(source))
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(finder.found)


def _open_last(text: str, messages: Sequence[Message]) -> str:
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str) or not content.strip():
        raise RequestError(
            "continue_final_message needs a last message with text content",
            "continue_final_message",
        )
    at = text.rfind(content)
    if at < 0:  # templates often trim
        content = content.strip()
        at = text.rfind(content)
    if at < 0:
        raise RequestError(
            "the chat template changes the last message, so it cannot be continued",
            "continue_final_message",
        )
    return text[: at + len(content)]


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what one operation may build."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            size, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(size, (str, list, tuple)) and isinstance(times, int):
                _limit(len(size) * times, "a repeated string or list")
            elif isinstance(size, int) and size.bit_length() > _MAX_INTEGER_BITS:
                raise _TooLarge("a number of thousands of digits")
        elif operator == "**" and _is_large(left) | _is_large(right):
            raise _TooLarge("a power with operands beyond 1000")
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


class _CodeGenerator(jinja2.compiler.CodeGenerator):
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


_Environment.code_generator_class = _CodeGenerator


class _VariableFinder(_CodeGenerator):
    """As ``jinja2.meta`` finds undeclared variables, but without computing constants."""

    def __init__(self, environment: jinja2.Environment, name: None, filename: None) -> None:
        super().__init__(environment, name, filename, optimized=False)
        self.found: set[str] = set()

    def write(self, x: str) -> None:
        """No code is wanted."""

    def enter_frame(self, frame: Any) -> None:
        super().enter_frame(frame)
        for action, name in frame.symbols.loads.values():
            if action == "resolve" and name not in self.environment.globals:
                self.found.add(name)


class _GenerationBlocks(Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _RangeBudget:
    """``range`` for templates; one rendering may loop over MAX_LOOP_ITEMS in total."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_ITEMS

    def __call__(self, *args: int) -> range:
        items = range(*args)
        self._left -= max(len(items), 1)
        if self._left < 0:
            raise _TooLarge(f"loops over more than {MAX_LOOP_ITEMS} numbers")
        return items


def _limit(size: int, what: str) -> None:
    if size > MAX_CHARACTERS:
        raise _TooLarge(f"{what} of more than {MAX_CHARACTERS} elements")


def _is_large(value: object) -> bool:
    return isinstance(value, int) and abs(value) > 1000


def _check_format(text: str) -> None:
    if _WIDE_FIELD.search(text):
        raise _TooLarge("a format field with a computed width, or one of seven digits")


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
    raise _Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

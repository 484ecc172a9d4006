"""Chat templates: Jinja programs that come with a checkpoint and turn messages into a prompt.

The conventions are those of Hugging Face transformers: trimmed blocks, ``raise_exception``,
``strftime_now``, ``tojson`` without HTML escapes, ``break`` and ``continue``, ``{% generation %}``
blocks, and the special tokens as variables. A template is somebody else's code: it runs in
Jinja's immutable sandbox, and what it may multiply, pad or loop over is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from penstock.errors import ConfigError, RequestError, TokenizerError, first_line
from penstock.regular_file import read_regular
from penstock.tokenizer.chat_sandbox import (
    MAX_CHARACTERS,
    RangeBudget,
    Refused,
    TemplateEnvironment,
    TooLarge,
)

Message = Mapping[str, Any]

MAX_SOURCE = 1 << 20
"""Longest template in characters: ten times the longest in use."""


class ChatTemplate:
    """A compiled template. Rendering keeps no state; safe to share between threads.

    ``variables`` (``bos_token``, ``eos_token``, ...) are visible to the template. Raises
    TokenizerError if the source is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)
        if len(source) > MAX_SOURCE:
            raise TokenizerError(
                f"the chat template has {len(source)} characters, and {MAX_SOURCE} is the most; "
                "name another with --chat-template"
            )
        try:
            self._template = TemplateEnvironment().from_string(source)
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
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for ``messages``.

        ``add_generation_prompt`` ends it with the header of the assistant's turn.
        ``continue_final_message`` instead leaves the last message open, to be continued (it must
        then have text content and there is no generation prompt). ``chat_template_kwargs`` are the
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
            **(chat_template_kwargs or {}),
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": add_generation_prompt,
            "range": RangeBudget(),
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
                    raise TooLarge(f"a prompt of more than {MAX_CHARACTERS} characters")
        except Refused as error:
            raise RequestError(f"the chat template refused: {error}", "messages") from error
        except (TooLarge, MemoryError) as error:
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

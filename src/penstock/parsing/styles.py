"""How models write tool calls and reasoning, detected from the chat template and the
vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.parsing.known_styles import GENERIC, REASONING_STYLES, TOOL_STYLES
from penstock.parsing.style import ReasoningStyle, ToolStyle

if TYPE_CHECKING:
    from penstock.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"

TOOL_CHOICES = (AUTO, NONE, *dict.fromkeys(style.name for style in TOOL_STYLES))
REASONING_CHOICES = (AUTO, NONE, *(style.name for style in REASONING_STYLES))


@dataclass(frozen=True)
class Styles:
    """The tool and reasoning styles that a server parses answers with."""

    tools: ToolStyle | None = None
    reasoning: ReasoningStyle | None = None
    template_takes_tools: bool = False
    """Whether the chat template shows tools to the model."""
    system_role: bool = True
    """Whether the chat template has a place for the system's message, which described tools
    need."""

    @property
    def takes_tools(self) -> bool:
        """Whether requests may have tools."""
        return self.tools is not None and (self.template_takes_tools or self.tools.described)

    @classmethod
    def choose(
        cls,
        tools: str,
        reasoning: str,
        templates: Mapping[str, str],
        has_token: Callable[[str], bool] = lambda token: False,
    ) -> Styles:
        """``tools`` and ``reasoning`` name a style, or are ``auto`` or ``none``; ``has_token``
        tells whether the vocabulary has a token.

        Raises ConfigError for another name.
        """
        text = "\n".join(templates.values())
        shows_tools = "tools" in text
        described = tools == AUTO and bool(templates) and not shows_tools
        style = GENERIC if described else _tool_style(tools, text, has_token)
        system_role = True
        if style is not None and style.described:
            from penstock.tokenizer.system_role import has_system_role  # only now: it loads Jinja

            system_role = has_system_role(templates.get("default", ""))
        return cls(style, _reasoning_style(reasoning, text), shows_tools, system_role)

    @classmethod
    def of(cls, tokenizer: Tokenizer, tools: str, reasoning: str) -> Styles:
        """Those of a model, by its templates and vocabulary. Raises as :meth:`choose`."""
        templates = tokenizer.settings.chat_templates
        return cls.choose(
            tools, reasoning, templates, lambda token: tokenizer.token_id(token) is not None
        )

    def __str__(self) -> str:
        """A description for the server's start-up messages."""
        tools = NONE if self.tools is None else self.tools.name
        reasoning = NONE if self.reasoning is None else self.reasoning.name
        return f"tool calls: {tools}, reasoning: {reasoning}"


def _tool_style(choice: str, template: str, has_token: Callable[[str], bool]) -> ToolStyle | None:
    for style in TOOL_STYLES:
        if choice == style.name or (choice == AUTO and style.is_of(template, has_token)):
            return style
    _check(choice, TOOL_CHOICES, "--tool-call-parser")
    return None


def _reasoning_style(choice: str, template: str) -> ReasoningStyle | None:
    for style in REASONING_STYLES:
        if choice == style.name or (choice == AUTO and style.is_of(template)):
            return style
    _check(choice, REASONING_CHOICES, "--reasoning-parser")
    return None


def _check(choice: str, choices: tuple[str, ...], option: str) -> None:
    if choice not in choices:
        raise ConfigError(f"{option} {choice!r} is unknown; choose from {', '.join(choices)}")

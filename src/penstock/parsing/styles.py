"""How models write tool calls and reasoning: one record per style, detected from the chat
template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigError

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class ToolStyle:
    """Where calls stand in an answer, and how one is written."""

    name: str
    known_by: tuple[str, ...]
    """Substrings that a chat template of this style contains, all of them."""
    opening: str
    """Mark that begins a call or a list of calls."""
    closing: str = ""
    """Mark that follows a call; it may be missing."""
    lists: bool = False
    """Whether a JSON array of calls may follow the opening."""
    bare: bool = False
    """Whether an answer may begin directly with a call, without the opening."""
    unlike: tuple[str, ...] = ()
    """Substrings that no chat template of this style contains."""
    separators: str = ""
    """Characters that may stand between consecutive calls without an opening."""
    name_first: bool = False
    """Whether ``name{...}`` or ``name[ARGS]{...}`` may follow the opening."""
    short_ids: bool = False
    """Whether call ids must be nine letters or digits, which the templates check."""
    arguments_key: str = "arguments"
    """Key of the arguments in a forced call; the parser accepts both usual keys."""
    around: str = ""
    """Text written between the marks and a forced call."""
    between: str = ""
    """Text written between two forced calls."""
    arguments_mark: str = ""
    """Token before the arguments in ``name_first`` calls; used if the tokenizer has it."""

    def is_of(self, template: str) -> bool:
        return (
            bool(self.known_by)
            and all(mark in template for mark in self.known_by)
            and not any(mark in template for mark in self.unlike)
        )


@dataclass(frozen=True)
class ReasoningStyle:
    """Reasoning stands at the beginning of an answer, between ``opening`` and ``closing``."""

    name: str
    opening: str
    closing: str


TOOL_STYLES = (
    ToolStyle("hermes", ("<tool_call>",), "<tool_call>", closing="</tool_call>",
              unlike=("<function=", "<arg_key>"), around="\n", between="\n"),
    ToolStyle("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", lists=True, name_first=True,
              short_ids=True, between=", ", arguments_mark="[ARGS]"),
    ToolStyle("llama3", ("ipython", '"parameters"'), "<|python_tag|>", bare=True, separators=";",
              arguments_key="parameters", between="; "),
    ToolStyle("json", (), "", lists=True, bare=True, between=", "),
)  # fmt: skip
"""Known styles in the order of detection; ``json`` is never detected, only chosen by option."""

REASONING_STYLES = (
    ReasoningStyle("think", "<think>", "</think>"),
    ReasoningStyle("mistral", "[THINK]", "[/THINK]"),
)

TOOL_CHOICES = (AUTO, NONE, *(style.name for style in TOOL_STYLES))
REASONING_CHOICES = (AUTO, NONE, *(style.name for style in REASONING_STYLES))


@dataclass(frozen=True)
class Styles:
    """The tool and reasoning styles that a server parses answers with."""

    tools: ToolStyle | None = None
    reasoning: ReasoningStyle | None = None
    template_takes_tools: bool = False
    """Whether the chat template shows tools to the model."""

    @classmethod
    def choose(cls, tools: str, reasoning: str, templates: Mapping[str, str]) -> Styles:
        """``tools`` and ``reasoning`` name a style, or are ``auto`` or ``none``.

        Raises ConfigError for another name.
        """
        text = "\n".join(templates.values())
        return cls(_tool_style(tools, text), _reasoning_style(reasoning, text), "tools" in text)

    def __str__(self) -> str:
        """A description for the server's start-up messages."""
        tools = NONE if self.tools is None else self.tools.name
        reasoning = NONE if self.reasoning is None else self.reasoning.name
        return f"tool calls: {tools}, reasoning: {reasoning}"


def _tool_style(choice: str, template: str) -> ToolStyle | None:
    for style in TOOL_STYLES:
        if choice == style.name or (choice == AUTO and style.is_of(template)):
            return style
    _check(choice, TOOL_CHOICES, "--tool-call-parser")
    return None


def _reasoning_style(choice: str, template: str) -> ReasoningStyle | None:
    for style in REASONING_STYLES:
        if choice == style.name or (choice == AUTO and style.closing in template):
            return style
    _check(choice, REASONING_CHOICES, "--reasoning-parser")
    return None


def _check(choice: str, choices: tuple[str, ...], option: str) -> None:
    if choice not in choices:
        raise ConfigError(f"{option} {choice!r} is unknown; choose from {', '.join(choices)}")

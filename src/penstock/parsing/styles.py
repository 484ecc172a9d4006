"""How models write tool calls and reasoning: one record per style, detected from the chat
template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.parsing.tag_form import ARGUMENT_TAGS, FUNCTION_TAGS, INVOKE_TAGS, TagForm

AUTO, NONE = "auto", "none"

CallIds = Literal["long", "short", "numbered"]


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
    ids: CallIds = "long"
    """How calls are told apart: ``short`` are nine letters or digits, which the templates check;
    ``numbered`` stand in calls as ``functions.NAME:3``, by the number of the call in the
    conversation, and the ids in messages are replaced by these."""
    arguments_key: str = "arguments"
    """Key of the arguments in a forced call; the parser accepts both usual keys."""
    around: str = ""
    """Text written between the marks and a forced call."""
    between: str = ""
    """Text written between two forced calls."""
    arguments_mark: str = ""
    """Token before the arguments in ``name_first`` calls of a style that has lists, too: forced
    calls are lists if the tokenizer does not have it."""
    before_name: tuple[str, ...] = ()
    """Marks and text between the opening and the name, where that comes first."""
    after_name: tuple[str, ...] = ()
    """Marks and text between the name and the arguments."""
    after_arguments: str = ""
    """Text between the arguments and the closing, where the name comes first."""
    python: bool = False
    """Whether calls are Python's, ``name(city="Brno")``, in a list."""
    tags: TagForm | None = None
    """How the arguments are tagged, where they are not JSON."""
    section: tuple[str, str] | None = None
    """Marks before and after all calls, each of which has its own; they may be missing."""
    described: bool = False
    """Whether messages describe the tools and hold the calls, for chat templates that show
    neither. An answer that may call is then bound by a grammar: the model has not learned how."""

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


GENERIC = ToolStyle(
    "generic", (), "<tool_call>", closing="</tool_call>", around="\n", between="\n", described=True
)
"""The style for chat templates that show no tools."""

TOOL_STYLES = (
    ToolStyle("hermes", ("<tool_call>",), "<tool_call>", closing="</tool_call>",
              unlike=("<function=", "<arg_key>"), around="\n", between="\n"),
    ToolStyle("qwen3-coder", ("<tool_call>", "<function="), "<tool_call>", closing="</tool_call>",
              tags=FUNCTION_TAGS, around="\n", between="\n"),
    ToolStyle("glm", ("<tool_call>", "<arg_key>"), "<tool_call>", tags=ARGUMENT_TAGS,
              between="\n"),
    ToolStyle("minimax", ("<minimax:tool_call>", "<invoke name="), '<invoke name="',
              tags=INVOKE_TAGS, around="\n", between="\n",
              section=("<minimax:tool_call>", "</minimax:tool_call>")),
    ToolStyle("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", lists=True, name_first=True,
              ids="short", between=", ", arguments_mark="[ARGS]"),
    ToolStyle("llama3", ("ipython", '"parameters"'), "<|python_tag|>", bare=True, separators=";",
              arguments_key="parameters", between="; "),
    ToolStyle("deepseek-v3.1", ("<｜tool▁call▁begin｜>",), "<｜tool▁call▁begin｜>",
              closing="<｜tool▁call▁end｜>", unlike=("```json",), name_first=True,
              after_name=("<｜tool▁sep｜>",),
              section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    ToolStyle("deepseek-v3", ("<｜tool▁call▁begin｜>", "```json"), "<｜tool▁call▁begin｜>",
              closing="<｜tool▁call▁end｜>", name_first=True, between="\n",
              before_name=("function", "<｜tool▁sep｜>"), after_name=("\n```json\n",),
              after_arguments="\n```", section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    ToolStyle("kimi", ("tool_declare", "<|im_middle|>"), "<|tool_call_begin|>",
              closing="<|tool_call_end|>", name_first=True, ids="numbered",
              before_name=("functions.",), after_name=("<|tool_call_argument_begin|>",),
              section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    ToolStyle("phi4", ("<|tool_call|>", "<|/tool_call|>"), "<|tool_call|>",
              closing="<|/tool_call|>", lists=True, between=", "),
    ToolStyle("granite", ("<|tool_call|>",), "<|tool_call|>", unlike=("<|/tool_call|>",),
              lists=True, between=", "),
    ToolStyle("pythonic", ("[func_name1(",), "", lists=True, bare=True, python=True,
              between=", "),
    ToolStyle("json", (), "", lists=True, bare=True, between=", "),
    GENERIC,
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
    system_role: bool = True
    """Whether the chat template has a place for the system's message, which described tools
    need."""

    @property
    def takes_tools(self) -> bool:
        """Whether requests may have tools."""
        return self.tools is not None and (self.template_takes_tools or self.tools.described)

    @classmethod
    def choose(cls, tools: str, reasoning: str, templates: Mapping[str, str]) -> Styles:
        """``tools`` and ``reasoning`` name a style, or are ``auto`` or ``none``.

        Raises ConfigError for another name.
        """
        text = "\n".join(templates.values())
        shows_tools = "tools" in text
        described = tools == AUTO and bool(templates) and not shows_tools
        style = GENERIC if described else _tool_style(tools, text)
        system_role = True
        if style is not None and style.described:
            from penstock.tokenizer.system_role import has_system_role  # only now: it loads Jinja

            system_role = has_system_role(templates.get("default", ""))
        return cls(style, _reasoning_style(reasoning, text), shows_tools, system_role)

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

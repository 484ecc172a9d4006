"""Which variables chat templates read, and which of these are for users to set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jinja2

from penstock.tokenizer.chat_sandbox import CodeGenerator, TemplateEnvironment

_GIVEN: Final = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt"),
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
        *("mask_token", "additional_special_tokens"),
    }
)
"""What the engine gives to every template."""


def variables_read(source: str) -> frozenset[str]:
    """The variables that a template may read from outside; none if it is not valid."""
    environment = TemplateEnvironment()
    finder = _VariableFinder(environment, None, None)
    try:
        finder.visit(environment.parse(source))
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(finder.found)


def chat_template_kwargs(sources: Iterable[str]) -> tuple[str, ...]:
    """The variables that these templates read and whoever asks may set, such as
    ``enable_thinking``: those that are neither messages nor special tokens. Sorted by name."""
    read = frozenset[str]().union(*map(variables_read, sources))
    return tuple(sorted(read - _GIVEN))


class _VariableFinder(CodeGenerator):
    """Finds undeclared variables as ``jinja2.meta`` does, but without computing constants."""

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

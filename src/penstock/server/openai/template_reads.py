"""Which variables the chat templates of a checkpoint read, and which a request sets in vain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.parsing.known_styles import CHANNELS
from penstock.server.fields.rules import ANYTHING, Rule
from penstock.tokenizer.chat_variables import variables_read

UNREAD = Rule(
    field="chat_template_kwargs.*",
    endpoints=(),
    why="the chat template reads no such variable (`GET /v1/models` lists those that it reads)",
    advice=ANYTHING,
)
"""The rule of all template variables that no template reads."""
_MOST_NAMES = 16
_NAME_CHARS = 64
"""The bounds on what a header repeats of a body."""


@dataclass(frozen=True)
class TemplateReads:
    """The variables that chat templates read from outside; none without templates."""

    always: frozenset[str] = frozenset()
    """Those that every template reads."""
    ever: frozenset[str] = frozenset()
    """Those that any template reads."""
    efforts: tuple[str, ...] = ()
    """The degrees of effort that the model has learned; none where that is not known."""

    @classmethod
    def of(cls, templates: Mapping[str, str]) -> TemplateReads:
        """``templates`` are the sources, by the templates' names."""
        found = [variables_read(source) for source in templates.values()]
        if not found:
            return cls()
        known = any(map(CHANNELS.is_of, templates.values()))
        efforts = ("low", "medium", "high") if known else ()
        return cls(frozenset.intersection(*found), frozenset.union(*found), efforts)

    def unread(self, variables: Iterable[str]) -> list[str]:
        """Those of ``variables`` that no template reads."""
        return [name for name in variables if name not in self.ever]


def header_names(unread: Iterable[str]) -> list[str]:
    """The fields of these variables; what is no short name in ASCII is named by the rule alone."""
    plain, others = [], False
    for name in unread:
        if name.isascii() and name.isidentifier() and len(name) <= _NAME_CHARS:
            plain.append(f"chat_template_kwargs.{name}")
        else:
            others = True
    others |= len(plain) > _MOST_NAMES
    return plain[:_MOST_NAMES] + [UNREAD.field] * others

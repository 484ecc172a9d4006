"""One style of calls, and one of reasoning, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from penstock.parsing.forms import (
    CallForm,
    ChannelForm,
    JsonForm,
    KeyForm,
    NamedForm,
    TagForm,
    ValueForm,
)

CallIds = Literal["long", "short", "numbered"]


class Start(Enum):
    """Where in an answer its text begins: a prompt may end inside."""

    BEGINNING = auto()
    REASONING = auto()
    CONTENT = auto()


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
    form: CallForm = field(default_factory=JsonForm)
    named: NamedForm | None = None
    """Another form, which newer models of the style write: those whose tokenizers have all of its
    marks. Both are read."""
    lists: bool = False
    """Whether an array of calls may follow the opening."""
    bare: bool = False
    """Whether an answer may begin directly with a call, without the opening."""
    unlike: tuple[str, ...] = ()
    """Substrings that no chat template of this style contains."""
    tokens: tuple[str, ...] = ()
    """Tokens that a vocabulary of this style has, where the template does not say enough."""
    separators: str = ""
    """Characters that may stand between consecutive calls without an opening."""
    around: str = ""
    """Text written between the marks and a forced call."""
    between: str = ""
    """Text written between two forced calls."""
    section: tuple[str, str] | None = None
    """Marks before and after all calls, each of which has its own; they may be missing."""
    stop: str = ""
    """Token that begins what a call returns, which the server writes: it ends an answer."""
    described: bool = False
    """Whether messages describe the tools and hold the calls, for chat templates that show
    neither. An answer that may call is then bound by a grammar: the model has not learned how."""
    ids: CallIds = "long"
    """How calls are told apart: ``short`` are nine letters or digits, which the templates check;
    ``numbered`` stand in calls as ``functions.NAME:3``, by the number of the call in the
    conversation, and the ids in messages are replaced by these."""
    results_named: bool = False
    """Whether templates want the function's name with what a call returned."""
    arguments_as_text: bool = False
    """Whether templates want the arguments of calls in messages as a text."""

    def is_of(self, template: str, has_token: Callable[[str], bool]) -> bool:
        return (
            bool(self.known_by)
            and all(mark in template for mark in self.known_by)
            and not any(mark in template for mark in self.unlike)
            and all(map(has_token, self.tokens))
        )

    @property
    def json_form(self) -> JsonForm | KeyForm:
        """How calls as JSON are read."""
        return self.form if isinstance(self.form, JsonForm | KeyForm) else JsonForm()

    @property
    def marks(self) -> list[str]:
        """What the answer's text must show."""
        marks = [self.opening, *(self.section or ())]
        if isinstance(self.form, ValueForm):
            marks.append(self.form.quote)
        if isinstance(self.form, TagForm):
            marks.append(self.form.token)
        if isinstance(self.form, ChannelForm):
            marks += [self.form.channel, self.form.message]
        return [mark for mark in marks if mark]


@dataclass(frozen=True)
class ReasoningStyle:
    """Reasoning stands at the beginning of an answer, between ``opening`` and ``closing``."""

    name: str
    opening: str
    closing: str
    answer: tuple[str, str] | None = None
    """Marks around the rest of an answer that calls nothing; they may be missing."""
    also_opened: str = ""
    """What may follow the opening at the end of a prompt."""
    form: ChannelForm | None = None
    """The messages that the answer consists of; reasoning is then what is in its channel."""

    @property
    def marks(self) -> list[str]:
        """What the answer's text must show."""
        if self.form is not None:
            return [self.form.channel, self.form.message]
        return [self.opening, *(self.answer or ())]

    def is_of(self, template: str) -> bool:
        known_by = [self.closing]
        if self.answer is not None:
            known_by.append(self.answer[0])
        if self.form is not None:
            known_by = [self.form.start, self.form.channel, self.form.message]
        return all(mark in template for mark in known_by)

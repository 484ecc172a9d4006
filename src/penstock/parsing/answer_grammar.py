"""The grammar of a whole answer: reasoning, then text, calls of tools, or what a request asked for.

Written so that what :mod:`penstock.parsing` reads from an answer of the grammar is what was
asked for. The notation is Lark's with ``%json``, ``%lark`` and numbered special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.grammar.spec import GrammarSpec
from penstock.parsing.python_grammar import python_rules
from penstock.parsing.styles import ReasoningStyle, ToolStyle
from penstock.parsing.tag_grammar import tag_rules
from penstock.tokenizer import Tokenizer

_AS_TEMPLATES_WRITE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance options for JSON in calls: spaced as models were trained, without endless white
space."""


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str  # letters, digits, underscores and dashes
    schema: Mapping[str, Any]
    """JSON schema of its arguments, which are an object."""
    param: str
    """The request field that holds the schema, for error messages."""


@dataclass(frozen=True)
class Calls:
    """Which calls an answer may or must hold."""

    style: ToolStyle
    functions: Sequence[Function]
    forced: bool
    """Whether the answer holds only calls; otherwise text may surround them, or there are none."""
    single: bool
    """Whether at most one call is allowed, which ends the answer."""


@dataclass(frozen=True)
class Beginning:
    """The reasoning that may come before the rest of an answer."""

    style: ReasoningStyle
    inside: bool
    """Whether the prompt ended with the opening mark, so that the answer starts inside the
    reasoning."""


def answer_grammar(
    tokenizer: Tokenizer,
    reasoning: Beginning | None,
    calls: Calls | None,
    content: GrammarSpec | None,
) -> GrammarSpec:
    """What binds an answer, by ``calls`` or ``content`` or both.

    With ``calls`` that are not forced, ``content`` is what the answer must be where it is no
    call; None leaves it free. A reasoning block may come first and is free. ``content`` must have
    been found good (:func:`penstock.grammar.compile.check`).
    """
    if calls is None and reasoning is None:
        assert content is not None
        return content
    return GrammarSpec(kind="lark", text=_Writer(tokenizer, reasoning).answer(calls, content))


class _Writer:
    """Writes one grammar, a rule a line."""

    def __init__(self, tokenizer: Tokenizer, reasoning: Beginning | None) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._rules: list[str] = []

    def answer(self, calls: Calls | None, content: GrammarSpec | None) -> str:
        if calls is None:
            assert content is not None
            body = self._content(content)
        elif calls.forced:
            body = self._calls(calls)
        elif content is not None:
            body = f"({self._calls(calls)} | {self._content(content)})"
        else:
            body = self._text_with(calls)
        return "\n".join([f"start: {self._thinking()} {body}", *self._rules, ""])

    def _thinking(self) -> str:
        """The reasoning and the space after it."""
        if self._reasoning is None:
            return ""
        style, inside = self._reasoning.style, self._reasoning.inside
        opening = "" if inside else self._mark(style.opening)
        if self._is_token(style.closing):
            self._rules.append(f"thinking: {opening} /(?s:.*)/ {self._mark(style.closing)}")
        else:
            begun = "" if inside else _quoted(style.opening)
            closing = json.dumps(style.closing)
            self._rules.append(f"thinking[suffix={closing}]: /{begun}(?s:.*)/")
        self._rules.append(r"SPACE: /\s{1,4}/")
        return "thinking SPACE?" if inside else "(thinking SPACE?)?"

    # What the request asked for.

    def _content(self, content: GrammarSpec) -> str:
        from penstock.grammar.notation import lark_of  # only now: it loads llguidance

        if content.kind == "regex":
            pattern = _in_slashes(content.text)
            self._rules.append("content: CONTENT")
            self._rules.append(f"CONTENT: /{pattern}/{self._no_reasoning()}")
        else:
            self._rules.append(f"content: %lark {{\n{lark_of(content, '')}\n}}")
        return "content"

    # Calls.

    def _calls(self, calls: Calls) -> str:
        """Nothing but calls."""
        style = calls.style
        opening = self._mark(style.opening) if style.opening else ""
        if style.bare:
            opening = f"{opening}?" if opening else ""
            one, many = self._bare(calls)
            return f"{opening} {one if calls.single else many}"
        tail = self._after_opening(calls)
        self._rules.append(f"call: {opening} {tail}")
        begin, end = self._section(style)
        if calls.single or (style.lists and not self._names_first(style)):
            return f"{begin} call {end}"
        more = f"({json.dumps(style.between)} call)*" if self._between(style) else "call*"
        return f"{begin} call {more} {end}"

    def _text_with(self, calls: Calls) -> str:
        """Calls among text, or text alone."""
        style = calls.style
        if style.bare:
            begins = r"(?s:\s*[\{\[].*)" if style.lists else r"(?s:\s*\{.*)"
            return f"({self._calls(calls)} | {self._text(begins)})"
        tail = self._after_opening(calls)
        text = self._text()
        begin = end = ""
        if style.section:
            begin, end = (self._optional(mark) for mark in style.section)
        if self._is_token(style.opening):
            before = f"{text} {begin} {self._mark(style.opening)}"
        else:
            before = "before_call"
            self._rules.append("before_call[lazy]: BEFORE_CALL")
            closed = rf"/(?s:.*){_quoted(style.opening)}/"
            self._rules.append(f"BEFORE_CALL: {closed}{self._no_reasoning()}")
        self._rules.append(f"call: {before} {tail} {end}")
        return f"(call | {text})" if calls.single else f"call* {text}"

    def _text(self, unlike: str | None = None) -> str:
        """Any text but reasoning, and but what ``unlike`` matches."""
        refused = "" if unlike is None else f" & ~/{unlike}/"
        self._rules.append("text: TEXT")
        self._rules.append(f"TEXT: /(?s:.*)/{refused}{self._no_reasoning()}")
        return "text"

    def _after_opening(self, calls: Calls) -> str:
        """What follows the opening, up to the end of the call or of the list of calls."""
        style = calls.style
        closing = self._mark(style.closing) if style.closing else ""
        if self._names_first(style):
            before, after = self._pieces(style.before_name), self._pieces(style.after_name)
            if style.arguments_mark:
                after = self._mark(style.arguments_mark)
            if style.ids == "numbered":
                after = f"/:[0-9]{{1,3}}/ {after}"
            functions = enumerate(calls.functions)
            heads = [f"{json.dumps(f.name)} {after} {self._arguments(i, f)}" for i, f in functions]
            ended = json.dumps(style.after_arguments) if style.after_arguments else ""
            return f"{before} ({' | '.join(heads)}) {ended} {closing}"
        around = json.dumps(style.around) if style.around and not style.section else ""
        if style.tags is not None:
            for i, function in enumerate(calls.functions):
                schema, name = function.schema, function.name
                self._rules += tag_rules(style.tags, i, name, schema, _AS_TEMPLATES_WRITE)
            some = " | ".join(f"call_{i}" for i in range(len(calls.functions)))
            return f"({some}) {around if closing else ''} {closing}"
        if style.lists:
            item = self._object(calls)
            more = "" if calls.single else f" ({json.dumps(style.between)} {item})*"
            return f'"[" {item}{more} "]" {closing}'
        return f"{around} {self._object(calls)} {around} {closing}"

    def _bare(self, calls: Calls) -> tuple[str, str]:
        """One call and several, as styles without an opening write them."""
        between = json.dumps(calls.style.between)
        if calls.style.python:
            for i, function in enumerate(calls.functions):
                self._rules += python_rules(i, function.name, function.schema, _AS_TEMPLATES_WRITE)
            item = f"({' | '.join(f'call_{i}' for i in range(len(calls.functions)))})"
            return f'"[" {item} "]"', f'"[" {item} ({between} {item})* "]"'
        item = self._object(calls)
        several = f"{item} ({between} {item})*"
        return item, f'({item} | "[" {several} "]")' if calls.style.lists else several

    def _object(self, calls: Calls) -> str:
        """``{"name": ..., "arguments": {...}}``"""
        key = json.dumps(calls.style.arguments_key)
        heads = []
        for i, function in enumerate(calls.functions):
            head = json.dumps(f'{{"name": "{function.name}", {key}: ')
            heads.append(f"{head} {self._arguments(i, function)}")
        self._rules.append(f'object: ({" | ".join(heads)}) "}}"')
        return "object"

    def _arguments(self, i: int, function: Function) -> str:
        schema = json.dumps({**function.schema, "x-guidance": _AS_TEMPLATES_WRITE})
        self._rules.append(f"arguments_{i}: %json {schema}")
        return f"arguments_{i}"

    def _section(self, style: ToolStyle) -> tuple[str, str]:
        """What stands before and after forced calls."""
        if style.section is None:
            return "", ""
        begin, end = map(self._mark, style.section)
        around = json.dumps(style.around) if style.around else ""
        return f"{begin} {around}", f"{around} {end}"

    def _names_first(self, style: ToolStyle) -> bool:
        """Whether names come before the arguments. Newer tokenizers of a style that had lists
        before have a token between them."""
        mark = style.arguments_mark
        return style.name_first and (not mark or self._tokenizer.token_id(mark) is not None)

    def _between(self, style: ToolStyle) -> bool:
        """Whether text stands between calls that have their own openings."""
        return bool(style.between) and not style.lists

    # Marks.

    def _no_reasoning(self) -> str:
        """Return a suffix for a terminal that excludes text beginning as reasoning, which has its
        own rule."""
        reasoning = self._reasoning
        if reasoning is None or reasoning.inside or self._is_token(reasoning.style.opening):
            return ""
        return rf" & ~/(?s:\s*{_quoted(reasoning.style.opening)}.*)/"

    def _is_token(self, mark: str) -> bool:
        """Whether ``mark`` is a special token, which no text of a grammar matches."""
        return self._tokenizer.token_id(mark) in self._tokenizer.special_ids

    def _optional(self, mark: str) -> str:
        """A mark that is text is covered by the text around calls."""
        return f"{self._mark(mark)}?" if self._is_token(mark) else ""

    def _pieces(self, pieces: tuple[str, ...]) -> str:
        return " ".join(map(self._mark, pieces))

    def _mark(self, mark: str) -> str:
        if self._is_token(mark):
            return f"<[{self._tokenizer.token_id(mark)}]>"
        return json.dumps(mark)


def _quoted(text: str) -> str:
    """A pattern between slashes that matches ``text`` alone."""
    return re.escape(text).replace("/", r"\/")


def _in_slashes(pattern: str) -> str:
    """``pattern`` as it is written between slashes."""

    def escaped(match: re.Match[str]) -> str:
        return {"/": r"\/", "\n": r"\n"}.get(match[0], match[0])

    return re.sub(r"\\.|/|\n", escaped, pattern, flags=re.DOTALL)

"""The grammar of a whole answer: reasoning, then text, calls of tools, or what a request asked for.

Written so that what :mod:`penstock.parsing` reads from an answer of the grammar is what was
asked for. The notation is Lark's with ``%json``, ``%lark`` and numbered special tokens.
"""

from __future__ import annotations

import json
import re

from penstock.grammar.spec import GrammarSpec
from penstock.parsing.asked_calls import Calls
from penstock.parsing.forms import ChannelForm, NamedForm, PythonForm
from penstock.parsing.grammars.call_rules import arguments_rule, call_rules
from penstock.parsing.grammars.channel_rules import ChannelRules
from penstock.parsing.grammars.marks import Marks, quoted
from penstock.parsing.style import ReasoningStyle, Start, ToolStyle
from penstock.tokenizer import Tokenizer


def answer_grammar(
    tokenizer: Tokenizer,
    reasoning: ReasoningStyle | None,
    start: Start,
    calls: Calls | None,
    content: GrammarSpec | None,
) -> GrammarSpec:
    """What binds an answer that begins at ``start``, by ``calls`` or ``content`` or both.

    With ``calls`` that are not forced, ``content`` is what the answer must be where it is no
    call; None leaves it free. A reasoning block may come first and is free. ``content`` must have
    been found good (:func:`penstock.grammar.compile.check`).
    """
    if calls is None and reasoning is None:
        assert content is not None
        return content
    writer = _Writer(Marks(tokenizer), reasoning, start)
    form = (reasoning and reasoning.form) or (calls and calls.style.form)
    if isinstance(form, ChannelForm):
        text = writer.channels(form, calls, content)
    else:
        text = writer.answer(calls, content)
    return GrammarSpec(kind="lark", text=text)


class _Writer:
    """Writes one grammar, a rule a line."""

    def __init__(self, marks: Marks, reasoning: ReasoningStyle | None, start: Start) -> None:
        self._marks = marks
        self._reasoning = reasoning
        self._start = start
        self._inside = start is Start.REASONING
        self._rules: list[str] = []

    def answer(self, calls: Calls | None, content: GrammarSpec | None) -> str:
        if calls is None:
            assert content is not None
            body = self._answered(self._content(content))
        elif calls.forced:
            body = self._calls(calls)
        elif content is not None:
            body = f"({self._calls(calls)} | {self._answered(self._content(content))})"
        else:
            body = self._text_with(calls)
        return self._grammar(f"{self._thinking()} {body}")

    def channels(self, form: ChannelForm, calls: Calls | None, content: GrammarSpec | None) -> str:
        """The same, where the answer consists of messages."""
        messages = ChannelRules(form, self._marks)
        functions = () if calls is None else calls.functions
        ends = [messages.call(each.name, f"arguments_{i}") for i, each in enumerate(functions)]
        self._rules += [arguments_rule(i, each) for i, each in enumerate(functions)]
        rest = None
        if calls is None or not calls.forced:
            rest = "text" if content is None else self._content(content)
            ends.append(messages.text() if content is None else messages.content(rest))
        body = messages.answer(self._start, calls is not None, ends, rest)
        self._rules += messages.rules
        return self._grammar(body)

    def _grammar(self, body: str) -> str:
        return "\n".join([f"start: {body}", *self._rules, ""])

    def _thinking(self) -> str:
        """The reasoning and the space after it."""
        style = self._reasoning
        if style is None:
            return ""
        if self._is_token(style.closing):
            opening = "" if self._inside else self._mark(style.opening)
            self._rules.append(f"thinking: {opening} /(?s:.*)/ {self._mark(style.closing)}")
        else:
            begun = "" if self._inside else quoted(style.opening)
            closing = json.dumps(style.closing)
            self._rules.append(f"thinking[suffix={closing}]: /{begun}(?s:.*)/")
        self._rules.append(r"SPACE: /\s{1,4}/")
        return "thinking SPACE?" if self._inside else "(thinking SPACE?)?"

    def _answered(self, content: str) -> str:
        """``content`` with the marks that may be around it."""
        marks = None if self._reasoning is None else self._reasoning.answer
        if marks is None:
            return content
        opening, closing = map(self._mark, marks)
        return f"({content} | {opening} SPACE? {content} SPACE? {closing})"

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
            one, many = self._bare(calls)
            closing = self._mark(style.closing) if style.closing else ""
            some = one if calls.single else many
            return f"({some} | {opening} {some} {closing})" if opening else some
        self._rules.append(f"call: {opening} {self._after_opening(calls)}")
        begin, end = self._section(style)
        if calls.single or (style.lists and self._named(style) is None):
            return f"{begin} call {end}"
        between = style.between if not style.lists else ""
        return (
            f"{begin} call ({json.dumps(between)} call)* {end}"
            if between
            else (f"{begin} call+ {end}")
        )

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
            closed = rf"/(?s:.*){quoted(style.opening)}/"
            self._rules.append(f"BEFORE_CALL: {closed}{self._no_reasoning()}")
        self._rules.append(f"call: {before} {tail} {end}")
        free = self._answered(text)
        return f"(call | {free})" if calls.single else f"call* {free}"

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
        named = self._named(style)
        self._rules += call_rules(named or style.form, calls.functions, self._marks)
        if named is not None:
            return f"item {closing}"
        around = json.dumps(style.around) if style.around and not style.section else ""
        if style.lists:
            more = "" if calls.single else f"({json.dumps(style.between)} item)*"
            return f'"[" {around} item {more} {_last(style.around)} "]" {closing}'
        return f"{around} item {around if closing else ''} {closing}"

    def _bare(self, calls: Calls) -> tuple[str, str]:
        """One call and several, as styles write them that need no opening."""
        style = calls.style
        self._rules += call_rules(style.form, calls.functions, self._marks)
        several = f"item ({json.dumps(style.between)} item)*"
        if isinstance(style.form, PythonForm):
            return '"[" item "]"', f'"[" {several} "]"'
        return "item", f'(item | "[" {several} "]")' if style.lists else several

    def _section(self, style: ToolStyle) -> tuple[str, str]:
        """What stands before and after forced calls."""
        if style.section is None:
            return "", ""
        begin, end = map(self._mark, style.section)
        around = json.dumps(style.around) if style.around else ""
        return f"{begin} {around}", f"{around} {end}"

    def _named(self, style: ToolStyle) -> NamedForm | None:
        """The form of calls whose names come before the arguments, where they have it."""
        if isinstance(style.form, NamedForm):
            return style.form
        newer = style.named
        return newer if newer is not None and self._marks.known(*newer.after_name) else None

    # Marks.

    def _no_reasoning(self) -> str:
        """Return a suffix for a terminal that excludes text beginning as reasoning, which has its
        own rule."""
        reasoning = self._reasoning
        if reasoning is None or self._inside or self._is_token(reasoning.opening):
            return ""
        return rf" & ~/(?s:\s*{quoted(reasoning.opening)}.*)/"

    def _is_token(self, mark: str) -> bool:
        """Whether ``mark`` is a special token, which no text of a grammar matches."""
        return self._marks.are_tokens(mark)

    def _optional(self, mark: str) -> str:
        """A mark that is text is covered by the text around calls."""
        return f"{self._mark(mark)}?" if self._is_token(mark) else ""

    def _mark(self, mark: str) -> str:
        return self._marks.spelled(mark)


def _last(around: str) -> str:
    """What is before the end of a list that has ``around`` before its first item."""
    return json.dumps("\n") if around.startswith("\n") else ""


def _in_slashes(pattern: str) -> str:
    """``pattern`` as it is written between slashes."""

    def escaped(match: re.Match[str]) -> str:
        return {"/": r"\/", "\n": r"\n"}.get(match[0], match[0])

    return re.sub(r"\\.|/|\n", escaped, pattern, flags=re.DOTALL)

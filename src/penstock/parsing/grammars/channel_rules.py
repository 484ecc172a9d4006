"""Grammar rules of answers in messages for channels."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.parsing.forms import ChannelForm
from penstock.parsing.grammars.marks import Marks, quoted
from penstock.parsing.style import Start


class ChannelRules:
    """Writes the messages that an answer of ``form`` may have, with the ``rules`` that they need.

    An answer ends with a call, or with the message for the user. The marks behind these two are
    the model's to choose: they end its texts, so that no grammar names them.
    """

    def __init__(self, form: ChannelForm, marks: Marks) -> None:
        self._form = form
        self._marks = marks
        self._are_tokens = marks.are_tokens(
            form.start, form.channel, form.message, form.constrain, form.end
        )
        self.rules: list[str] = []
        self._rule_of_texts()

    def answer(self, start: Start, preambles: bool, ends: Sequence[str], rest: str | None) -> str:
        """Reasoning, and with ``preambles`` texts for the user, then one of ``ends``. ``rest`` is
        what an answer must be that starts inside the message for the user; None where no answer
        may end with that."""
        form = self._form
        next_message = self._marks.spelled(form.start, form.author)
        closed = f"told {next_message}"
        thought = f"{self._head(form.reasoning)} {closed}"
        before = f"({thought})*"
        if preambles:
            before = f"({thought} | {self._head(form.calls)} {closed})*"
        body = f"{before} ({' | '.join(ends)})"
        if start is Start.REASONING:
            return f"{closed} {body}"
        if start is Start.CONTENT:
            return rest if rest is not None else f"{closed} {body}"
        return body

    def call(self, function: str, arguments: str) -> str:
        """A call, whose ``arguments`` are a rule."""
        form = self._form
        to = f"to={form.namespace}{function}"
        if not self._are_tokens:
            head = f"{form.channel}{form.calls} {to} {form.constrain}json{form.message}"
            return f"{json.dumps(head)} {arguments}"
        channel, message = map(self._marks.spelled, (form.channel, form.message))
        constrain = f'({self._marks.spelled(form.constrain)} "json")?'
        first = f"/ {quoted(to)}/ {channel} /{form.calls} ?/"
        last = f"{channel} /{form.calls} {quoted(to)} ?/"
        return f"({first} | {last}) {constrain} {message} {arguments}"

    def text(self) -> str:
        """The message for the user, of which nothing is asked."""
        return f"{self._head(self._form.answer)} text"

    def content(self, rule: str) -> str:
        """The message for the user that is as ``rule`` says."""
        form = self._form
        if not self._are_tokens:
            return f"{self._head(form.answer)} {rule}"
        channel, message = map(self._marks.spelled, (form.channel, form.message))
        constrain = f'({self._marks.spelled(form.constrain)} "json")?'
        return f"{channel} /{form.answer} ?/ {constrain} {message} {rule}"

    def _head(self, channel: str) -> str:
        return self._marks.spelled(self._form.channel, channel, self._form.message)

    def _rule_of_texts(self) -> None:
        """``told`` is a text with the mark that ends it, and ``text`` one that ends the answer."""
        form = self._form
        end = self._marks.spelled(form.end)
        if self._are_tokens:
            self.rules += [f"told: TEXT {end}", "text: TEXT", "TEXT: /(?s:.*)/"]
            return
        marks = "|".join(map(quoted, (form.start, form.channel, form.end, form.call, form.finish)))
        self.rules += [
            f"told[suffix={json.dumps(form.end)}]: /(?s:.*)/",
            "text: TEXT",
            f"TEXT: /(?s:.*)/ & ~/(?s:.*)({marks})(?s:.*)/",
        ]

"""A conversation with a person in a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path

from penstock.chat.chat_model import ChatModel, Delta, Usage
from penstock.chat.commands import obey
from penstock.chat.conversation import Conversation
from penstock.chat.cut import why_cut
from penstock.chat.lines import Interrupted, LineReader
from penstock.chat.settings import shown_variables
from penstock.chat.used_sampling import UsedSampling
from penstock.chat.views import Screen
from penstock.errors import EngineDeadError, PenstockError, RequestError, first_line
from penstock.interrupts import Interrupts

Show = Callable[[str], None]


class ChatSession:
    """Asks ``model`` what a person writes, and shows its answers on ``screen``.

    ``conversation`` is what has been said before, and what is set. It changes with each turn: a
    question that failed is no part of it, an answer that was stopped is as far as it came. With
    ``debug``, errors that nobody expects are raised.
    """

    def __init__(
        self,
        model: ChatModel,
        screen: Screen,
        conversation: Conversation | None = None,
        debug: bool = False,
    ) -> None:
        self.files: set[Path] = set()
        self._model = model
        self._screen = screen
        self._debug = debug
        self._left = False
        self.conversation = conversation or Conversation()

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        self._conversation = conversation.seeded()

    def run(self, reader: LineReader) -> None:
        """Read messages and commands until the person leaves.

        Errors are said, and the conversation goes on: it may have taken hours. Raises only
        EngineDeadError, after which nothing can be answered, and BrokenPipeError, where nobody
        reads the answers any more.
        """
        screen = self._screen
        described = f"{self._model.name}: {self._model.describe()}"
        screen.say(", ".join(filter(None, [described, self.used_sampling.header])))
        screen.remark("/help lists the commands; Ctrl-D leaves.")
        interrupted = False
        with reader:
            if reader.trouble:
                screen.remark(reader.trouble)
            while not self._left:
                try:
                    line = reader.message()
                except EOFError:
                    screen.say("")
                    break
                except Interrupted as typed:
                    screen.say("")
                    if interrupted and not typed.typed:
                        break
                    interrupted = not typed.typed
                    if interrupted:
                        screen.remark("Ctrl-C again, Ctrl-D or /exit leaves.")
                    continue
                except RequestError as error:
                    screen.say(f"error: {error}")
                    continue
                interrupted = self._take(line)
        if reader.trouble:
            screen.remark(reader.trouble)

    @property
    def chat_template_kwargs(self) -> tuple[str, ...] | None:
        return self._model.chat_template_kwargs

    @property
    def used_sampling(self) -> UsedSampling:
        return UsedSampling(self.conversation, self._model.sampling_defaults)

    def ask(self, text: str) -> Answer:
        """Ask the model, and show its answer as it comes. Raises PenstockError."""
        asked = self.conversation.ask(text)
        answer = Answer()
        view = self._screen.answer()
        try:
            with Interrupts(self._model.interruptible) as interrupts:
                try:
                    with contextlib.closing(self._model.stream(asked)) as deltas:
                        answer.follow(deltas, view.reasoning, view.content, interrupts)
                except KeyboardInterrupt:
                    if not self._model.interruptible:
                        raise
                    answer.stopped = True
        finally:
            view.finish()
        if answer.content or answer.reasoning:
            self.conversation = asked.answer(answer.content, answer.reasoning)
        if answer.finish_reason == "length":
            limit, context = self.used_sampling.max_tokens, self._model.context_tokens
            answer.cut = why_cut(answer.usage, limit, context)
        return answer

    def describe(self) -> str:
        conversation = self.conversation
        template = shown_variables(conversation, self.chat_template_kwargs)
        turns = "1 turn" if conversation.turns == 1 else f"{conversation.turns} turns"
        return "\n".join(
            [
                f"model: {self._model.name}, {self._model.describe()}",
                f"parameters: {self.used_sampling}",
                f"chat template: {template}",
                f"system message: {conversation.system or 'none'}",
                f"said so far: {turns}",
            ]
        )

    def say(self, text: str) -> None:
        self._screen.say(text)

    def leave(self) -> None:
        """End :meth:`run` after this command."""
        self._left = True

    def _take(self, line: str) -> bool:
        """Obey a command or ask the model; returns whether the person stopped the answer."""
        try:
            if line.startswith("/"):
                obey(self, line)
            elif line.strip():
                answer = self.ask(line.strip())
                self._screen.remark(answer.summary())
                self._screen.say("")
                return answer.stopped
        except (EngineDeadError, BrokenPipeError):
            raise
        except PenstockError as error:
            self._screen.say(f"error: {error}")
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:
                self._screen.say(f"error: {error.filename}: {error.strerror}")
                return False
            if self._debug:
                raise
            self._screen.say(
                f"internal error, {type(error).__name__}: {first_line(error)}; the conversation is "
                "as it was (--debug shows the traceback, and ends)"
            )
        return False


class Answer:
    """One answer, its clock and its cost."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.stopped = False
        """Whether the person stopped it."""
        self.finish_reason: str | None = None
        self.cut = ""
        """Which limit ended it, where one did."""
        self.usage: Usage | None = None
        self._start = time.monotonic()
        self._first: float | None = None
        self._last = self._start

    def follow(
        self,
        deltas: Generator[Delta, None, None],
        on_reasoning: Show,
        on_content: Show,
        interrupts: Interrupts,
    ) -> None:
        """Take in what comes and show it, until it ends or the person stops it."""
        for delta in deltas:
            if interrupts.asked and delta.finish_reason is None:
                self.stopped = True
                return
            self._last = time.monotonic()
            if self._first is None and (delta.content or delta.reasoning_content):
                self._first = self._last
            if delta.reasoning_content:
                self.reasoning += delta.reasoning_content
                on_reasoning(delta.reasoning_content)
            if delta.content:
                self.content += delta.content
                on_content(delta.content)
            self.finish_reason = delta.finish_reason or self.finish_reason
            self.usage = delta.usage or self.usage

    def summary(self) -> str:
        """One line: how much, how fast, and why it ended where that is not plain."""
        parts = []
        first = None if self._first is None else self._first - self._start
        if self.usage is not None:
            tokens = self.usage.completion_tokens
            parts.append("1 token" if tokens == 1 else f"{tokens:,} tokens")
            seconds = 0.0 if self._first is None else self._last - self._first
            if tokens > 1 and seconds > 0:
                parts.append(f"{(tokens - 1) / seconds:,.1f} tokens/s")
        if first is not None:
            parts.append(f"first after {first:.2f} s")
        if self.usage is not None and self.usage.cached_tokens:
            usage = self.usage
            parts.append(f"{usage.cached_tokens:,} of {usage.prompt_tokens:,} prompt tokens cached")
        if self.stopped:
            parts.append("stopped")
        elif self.cut:
            parts.append(self.cut)
        return ", ".join(parts)

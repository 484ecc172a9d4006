"""Reads what a person writes: lines with editing and history, and blocks of several lines."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

from penstock.errors import RequestError

QUOTES: Final = '"""'
PROMPT: Final = ">>> "
CONTINUED: Final = "... "
_HISTORY_LINES: Final = 1000


class Interrupted(Exception):
    """The reader pressed Ctrl-C; ``typed`` is what was on the line."""

    def __init__(self, typed: str) -> None:
        super().__init__(typed)
        self.typed = typed


class LineReader:
    """Reads from the terminal by ``read``, which is given a prompt and raises EOFError at the end.

    Lines are kept in ``history``, a file, for the next conversation; None keeps none. ``words`` are
    completed at a line's beginning.
    """

    def __init__(
        self,
        history: Path | None,
        words: Sequence[str] = (),
        read: Callable[[str], str] = input,
    ) -> None:
        self._read = read
        self._history = history
        self._words = words
        self._trouble = ""

    def __enter__(self) -> LineReader:
        readline = _readline()
        if readline is not None:
            readline.set_completer(self._complete)
            readline.set_completer_delims(" ")
            readline.parse_and_bind("tab: complete")
            if self._history is not None and self._history.exists():
                try:
                    readline.read_history_file(self._history)
                except OSError as error:
                    self._trouble = f"{self._history} cannot be read: {error.strerror}"
        return self

    def __exit__(self, *error: object) -> None:
        self._save()

    @property
    def trouble(self) -> str:
        """Why history is not kept, if it is not."""
        return self._trouble

    def message(self) -> str:
        """One message or command.

        Three quotation marks, at its beginning or behind a command, begin a block of lines that
        the next three end. Raises EOFError at the end of input, Interrupted, and RequestError for
        bytes that are no text.
        """
        line = self._line(PROMPT)
        head, quotes, rest = line.partition(QUOTES)
        command = head.strip()
        if not quotes or not (command == "" or _is_word(command)):
            return line
        while QUOTES not in rest:
            rest += "\n" + self._line(CONTINUED)
        block = rest.partition(QUOTES)[0].strip("\n")
        if command:
            return f"{command} {block}"
        return f" {block}" if block.startswith("/") else block  # a message, not a command

    def _line(self, prompt: str) -> str:
        with _typed_line():
            try:
                line = self._read(prompt)
                # A locale may hand bytes that it cannot decode through, as surrogates.
                line.encode()
            except UnicodeError:
                raise RequestError("what you wrote is not UTF-8 text; write it again") from None
        return line

    def _complete(self, text: str, state: int) -> str | None:
        found = [f"{word} " for word in self._words if text and word.startswith(text)]
        return found[state] if state < len(found) else None

    def _save(self) -> None:
        readline = _readline()
        if readline is None or self._history is None or self._trouble:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._history.touch(mode=0o600)
            readline.set_history_length(_HISTORY_LINES)
            readline.write_history_file(self._history)
        except OSError as error:
            self._trouble = f"the history cannot be kept in {self._history}: {error.strerror}"


def line_with_prompt_aside(prompt: str) -> str:
    """Read a line as ``input`` does, with the prompt on standard error: where standard output is no
    terminal, only answers belong there."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def state_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The user's folder for what programs remember, ``penstock`` in $XDG_STATE_HOME.

    None for a user without a home folder.
    """
    named = environ.get("XDG_STATE_HOME", "")
    home = named if os.path.isabs(named) else os.path.expanduser("~/.local/state")
    return Path(home) / "penstock" if os.path.isabs(home) else None


def _is_word(text: str) -> bool:
    return text.startswith("/") and " " not in text


@contextmanager
def _typed_line() -> Iterator[None]:
    """Raise Interrupted, with what is typed so far, for Ctrl-C."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        readline = _readline()
        raise Interrupted("" if readline is None else readline.get_line_buffer())

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _readline() -> ModuleType | None:
    """The module, which gives ``input`` editing and history; None where Python has none."""
    try:
        import readline
    except ImportError:
        return None
    return readline

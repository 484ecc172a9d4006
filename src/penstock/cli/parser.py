"""An argument parser that raises instead of exiting, and helps with misspelled options."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class UsageError(ConfigError):
    """The command line cannot be understood."""


class Parser(argparse.ArgumentParser):
    """The parser of one command. Options are never abbreviated: a new option must not change
    what an old command line means."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument(
            "--debug",
            action="store_true",
            help="show tracebacks (PENSTOCK_DEBUG=1 does the same)",
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse options and places in any order. Raises UsageError."""
        args, extra = self.parse_known_intermixed_args(argv)
        if not extra:
            return args
        unknown = extra[0]
        if not unknown.startswith("-"):
            raise UsageError(f"unexpected argument {unknown!r}; see '{self.prog} --help'")
        option = unknown.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        hint = suggestion(option, known) or f"see '{self.prog} --help'"
        raise UsageError(f"unknown option {option}; {hint}")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help; unlike argparse's own, it fails where that cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def suggestion(word: str, known: Iterable[str]) -> str:
    """``"did you mean X?"`` for the closest known word, empty where none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""

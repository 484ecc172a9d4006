"""An argument parser that raises instead of exiting, and helps with misspelled options."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


_LIKE: Final = 0.7  # at 0.6, which is difflib's own, --stream is like --threads


class UsageError(ConfigError):
    """The command line cannot be understood."""


class Parser(argparse.ArgumentParser):
    """The parser of one command. Options are never abbreviated: a new option must not change
    what an old command line means.

    ``rare`` are options that ``--help`` leaves out, and ``--help-all`` shows.
    """

    def __init__(self, prog: str, description: str, rare: Collection[str] = ()) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
        )
        self._rare = frozenset(rare)
        self._places: list[str] | None = None
        self.add_argument("-h", "--help", action="help", help="show what is used most, and exit")
        if rare:
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show every option, and exit"
            )
        self.add_argument(
            "--debug",
            action="store_true",
            help="show tracebacks (PENSTOCK_DEBUG=1 does the same)",
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse options and places in any order. Raises UsageError."""
        self._places = self._usual_places()  # argparse hides them while it parses in any order
        args, extra = self.parse_known_intermixed_args(argv)
        if not extra:
            return args
        unknown = extra[0]
        if not unknown.startswith("-"):
            raise UsageError(f"unexpected argument {unknown!r}; see '{self.prog} --help'")
        option = unknown.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        from penstock.cli.foreign_options import instead_of  # only now: it imports the options

        takes_model = any(action.dest == "model" for action in self._actions)
        hint = (
            instead_of(option, known, takes_model)
            or suggestion(option, known)
            or f"see '{self.prog} --help'"
        )
        raise UsageError(f"unknown option {option}; {hint}")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help; unlike argparse's own, it fails where that cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def format_usage(self) -> str:
        return f"usage: {self._usage()}\n"

    def format_help(self, whole: bool = False) -> str:
        """The help; without ``whole``, rare options are left out, and their number is told."""
        formatter = self._get_formatter()
        formatter.add_usage(self._usage().replace("%", "%%"), self._actions, [])
        formatter.add_text(self.description)
        left_out = 0
        for group in self._action_groups:
            shown = [a for a in group._group_actions if whole or not self._is_rare(a)]
            left_out += len(group._group_actions) - len(shown)
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(shown)
            formatter.end_section()
        if left_out:
            formatter.add_text(f"{left_out} more options: {self.prog} --help-all")
        return formatter.format_help()

    def _is_rare(self, action: argparse.Action) -> bool:
        return bool(self._rare.intersection(action.option_strings))

    def _usage(self) -> str:
        places = self._usual_places() if self._places is None else self._places
        return " ".join([self.prog, *places, "[OPTION ...]"])

    def _usual_places(self) -> list[str]:
        return [
            str(name)
            if action.nargs is None
            else f"{name} ..."
            if action.nargs == "+"
            else f"[{name}]"
            for action in self._actions
            if not action.option_strings
            for name in [action.metavar or "|".join(map(str, action.choices or ())) or action.dest]
        ]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


class _HelpAll(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_help(whole=True))
        parser.exit()


def suggestion(word: str, known: Iterable[str]) -> str:
    """``"did you mean X?"`` for the shortest known word that begins so, else for the closest;
    empty where none is close. Dashes before words do not make them alike."""
    bare = {name.lstrip("-"): name for name in known}
    stem = word.lstrip("-")
    begun = [name for name in bare if len(stem) > 1 and name.startswith(stem)]
    close = sorted(begun, key=len) or difflib.get_close_matches(stem, list(bare), n=1, cutoff=_LIKE)
    return f"did you mean {bare[close[0]]}?" if close else ""

"""Options that say what an output must be."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.cli.parser import UsageError
from penstock.cli.standard_input import text_argument
from penstock.errors import RequestError
from penstock.grammar.notation import lark_of
from penstock.grammar.spec import GrammarSpec

GRAMMAR: Final = "grammar"
"""The field of a request that errors about a grammar name."""


def add_grammar_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the output must be (one of these)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--json-object", action="store_true", help="a JSON object")
    one.add_argument("--json-schema", metavar="FILE", help="JSON of the schema in this file")
    one.add_argument(
        "--regex", type=text_argument, metavar="TEXT", help="a match of this regular expression"
    )
    one.add_argument("--grammar", metavar="FILE", help="of the grammar, in Lark's notation")
    one.add_argument(
        "--choice",
        type=text_argument,
        action="append",
        metavar="TEXT",
        help="one of these; give it several times",
    )


def grammar_of(args: argparse.Namespace) -> GrammarSpec | None:
    """What the arguments of :func:`add_grammar_arguments` ask for.

    Raises UsageError, naming the option and its file, where that is seen to be no grammar before
    a model is there. :func:`naming_option` is for what is seen later.
    """
    spec = _spec_of(args)
    if spec is not None:
        with naming_option(args):
            lark_of(spec, GRAMMAR)
    return spec


@contextlib.contextmanager
def naming_option(args: argparse.Namespace) -> Iterator[None]:
    """Turn a RequestError about the grammar into a UsageError that names the option, and its
    file."""
    try:
        yield
    except RequestError as error:
        if error.param != GRAMMAR:
            raise
        raise UsageError(f"argument {_source(args)}: {error}") from None


def _source(args: argparse.Namespace) -> str:
    if args.json_schema is not None:
        return f"--json-schema: {args.json_schema}"
    if args.grammar is not None:
        return f"--grammar: {args.grammar}"
    return "--regex" if args.regex is not None else "--choice"


def _spec_of(args: argparse.Namespace) -> GrammarSpec | None:
    if args.json_object:
        return GrammarSpec(kind="json_object")
    if args.json_schema is not None:
        return GrammarSpec(kind="json_schema", text=_read("--json-schema", args.json_schema))
    if args.regex is not None:
        return GrammarSpec(kind="regex", text=args.regex)
    if args.grammar is not None:
        return GrammarSpec(kind="lark", text=_read("--grammar", args.grammar))
    if args.choice is not None:
        return GrammarSpec(kind="choice", text=msgspec.json.encode(args.choice).decode())
    return None


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"argument {option}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"argument {option}: {path} is not UTF-8 text") from None

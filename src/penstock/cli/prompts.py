"""Where the prompts of ``penstock generate`` come from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.cli.parser import UsageError


class PromptLine(msgspec.Struct):
    """One line of a JSON Lines file; other fields are left alone."""

    prompt: str


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "-p",
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="a prompt; may be given several times; '-' reads one prompt from standard input",
    )
    group.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="a file of prompts, one on each line; a .jsonl file has one JSON object on each, "
        "with the field \"prompt\"; '-' reads lines from standard input",
    )


def read_prompts(args: argparse.Namespace) -> list[str]:
    """All prompts: those of ``-p`` first, then those of ``-f``. Raises UsageError and OSError."""
    if [*args.prompt, *args.file].count("-") > 1:
        raise UsageError("'-' is given more than once, but standard input can be read only once")
    prompts = [sys.stdin.read() if text == "-" else text for text in args.prompt]
    for name in args.file:
        if name == "-":
            prompts += _lines(sys.stdin)
            continue
        with Path(name).open(encoding="utf-8") as file:
            try:
                prompts += _objects(name, file) if name.endswith(".jsonl") else _lines(file)
            except UnicodeDecodeError as error:
                raise UsageError(f"{name}: not UTF-8 text ({error})") from None
    if not prompts:
        raise UsageError("no prompt: give one with -p TEXT, or a file of them with -f FILE")
    return prompts


def _lines(file: Iterable[str]) -> list[str]:
    return [text for line in file if (text := line.rstrip("\r\n"))]


def _objects(name: str, file: Iterable[str]) -> list[str]:
    prompts = []
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                prompts.append(msgspec.json.decode(line, type=PromptLine).prompt)
            except msgspec.DecodeError as error:
                raise UsageError(
                    f'{name}, line {number}: {error}; each line needs {{"prompt": "..."}}'
                ) from None
    return prompts

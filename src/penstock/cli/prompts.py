"""Where the prompts of ``penstock generate`` come from."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.cli.parser import UsageError
from penstock.cli.standard_input import is_piped, piped_lines, piped_text, text_argument


@dataclass(frozen=True)
class Origin:
    """Where a prompt stands in a file."""

    file: str
    line: int
    """Counted from 1."""


@dataclass(frozen=True)
class PromptInput:
    """One prompt as it was given."""

    text: str
    origin: Origin | None = None
    """None for a prompt of the command line."""
    fields: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    """The other fields of its JSON object, which are the user's own."""


@dataclass(frozen=True)
class BadLine:
    """A line of a file that is no prompt, and why."""

    origin: Origin
    error: str


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "-p",
        "--prompt",
        type=text_argument,
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
    """The texts of all prompts. Raises UsageError for the first line that is none, and OSError."""
    texts = []
    for given in read_inputs(args):
        if isinstance(given, BadLine):
            raise UsageError(f"{given.origin.file}, line {given.origin.line}: {given.error}")
        texts.append(given.text)
    return texts


def read_inputs(args: argparse.Namespace) -> list[PromptInput | BadLine]:
    """All prompts: those of ``-p`` first, then those of ``-f``. Raises UsageError and OSError.

    Without either, what is piped into standard input is the prompt, without its last line's end.
    """
    if [*args.prompt, *args.file].count("-") > 1:
        raise UsageError("'-' is given more than once, but standard input can be read only once")
    texts = [piped_text() if text == "-" else text for text in args.prompt]
    if not texts and not args.file and is_piped():
        piped = piped_text().removesuffix("\n").removesuffix("\r")
        texts = [piped] if piped else []
    given: list[PromptInput | BadLine] = [PromptInput(text) for text in texts]
    for name in args.file:
        if name == "-":
            given += _lines("-", piped_lines())
            continue
        with Path(name).open("rb") as file:
            given += _objects(name, file) if name.endswith(".jsonl") else _lines(name, file)
    if not given:
        raise UsageError(
            "no prompt: give one with -p TEXT, a file of them with -f FILE, or pipe one in"
        )
    return given


def _decoded(name: str, lines: Iterable[bytes]) -> Iterator[tuple[Origin, str] | BadLine]:
    for number, line in enumerate(lines, 1):
        origin = Origin(name, number)
        try:
            # The first line may begin with a byte-order mark, as editors on Windows write it.
            yield origin, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield BadLine(origin, f"not UTF-8 text ({error})")


def _lines(name: str, file: Iterable[bytes]) -> Iterator[PromptInput | BadLine]:
    for each in _decoded(name, file):
        if isinstance(each, BadLine):
            yield each
        elif each[1]:
            yield PromptInput(each[1], each[0])


def _objects(name: str, file: Iterable[bytes]) -> Iterator[PromptInput | BadLine]:
    for each in _decoded(name, file):
        if isinstance(each, BadLine):
            yield each
        elif each[1].strip():
            yield _object(*each)


def _object(origin: Origin, text: str) -> PromptInput | BadLine:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "prompt" not in fields:
            return BadLine(origin, 'there is no field "prompt"; each line needs {"prompt": "..."}')
        prompt = msgspec.json.decode(fields.pop("prompt"), type=str)
    except RecursionError:
        return BadLine(origin, "it is nested too deeply")
    except msgspec.DecodeError as error:
        return BadLine(origin, f'{error}; each line needs {{"prompt": "..."}}')
    return PromptInput(prompt, origin, fields)

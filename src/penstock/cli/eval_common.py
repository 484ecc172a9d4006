"""What the evaluation commands share: the text, how it is cut, and how results are kept."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.bench_common import command_line
from penstock.cli.options import ADAPTERS, positive_int
from penstock.errors import ConfigError
from penstock.evaluate.windows import WINDOW_METHODS, Window, cut
from penstock.written_file import check_writable, write_json

if TYPE_CHECKING:
    from penstock.evaluate.text_model import TextModel
    from penstock.resolved_config import ResolvedConfig

UNUSED: Final = frozenset(
    {
        "enable_prefix_caching",
        "generation_config",
        "kv_cache_bytes",
        "max_input_len",
        "max_model_len",
        "max_output_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "served_model_name",
        "speculative",
        *ADAPTERS,
    }
)
"""Engine options that change no logits, or that the windows decide."""


def add_text_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add ``--text`` and ``--json``; return the group of the text's arguments."""
    group = parser.add_argument_group("text")
    group.add_argument(
        "--text",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="the text, in UTF-8; may be given several times, and files are then one text",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure, and what they are of, here"
    )
    return group


def add_window_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the text's arguments, and those of how it is cut into windows."""
    group = add_text_arguments(parser)
    group.add_argument(
        "--window",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens that are read together, from an empty context (default: 512)",
    )
    group.add_argument(
        "--windows",
        choices=WINDOW_METHODS,
        default="llama.cpp",
        help="how the text is cut. llama.cpp: the second half of each window counts, and BOS "
        "stands first in each; gptq: every token but each window's first counts, and BOS stands "
        "before the text alone (default: llama.cpp)",
    )
    group.add_argument(
        "--max-windows", type=positive_int, metavar="N", help="read the first N windows only"
    )


def read_text(paths: Sequence[Path]) -> str:
    """The files as one text, line ends as they are, byte order marks left out. Raises ConfigError
    for what is no text."""
    parts = []
    for path in paths:
        try:
            parts.append(path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    return "".join(parts)


def text_of(args: argparse.Namespace) -> str:
    """The text, before anything is loaded or computed in vain.

    Raises ConfigError for what is no text, or where ``--json`` cannot be written.
    """
    if args.json is not None:
        check_writable("--json", args.json)
    return read_text(args.text)


def windows_of(args: argparse.Namespace, text: str, model: TextModel) -> list[Window]:
    """The windows of ``text`` that the arguments ask for, of the model's tokens."""
    tokens, bos = model.encode(text)
    return cut(tokens, args.window, args.windows, bos)[: args.max_windows]


def show_progress(done: int, total: int, figure: str) -> None:
    """A line on a terminal, which the next replaces."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done}/{total} windows, {figure} ", end=end, file=sys.stderr, flush=True)


def write_evaluation(
    path: Path,
    name: str,
    args: argparse.Namespace,
    result: object,
    windows: Sequence[Window] | None,
    **models: ResolvedConfig,
) -> None:
    """Write the figures, the texts by their hashes, how these were cut into windows if they were,
    and all options of each model."""
    document: dict[str, object] = {
        "evaluation": name,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["penstock", *command_line()]),
        **msgspec.to_builtins(result),
        "text": [
            {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            for file in args.text
        ],
        **{role: msgspec.to_builtins(each) for role, each in models.items()},
    }
    if windows is not None:
        cut_as = {"method": args.windows, "tokens": args.window, "count": len(windows)}
        document["windows"] = cut_as
    write_json(path, document)

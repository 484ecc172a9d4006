"""The options of ``penstock serve`` for several models."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli.options import parse_size


def add_models_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several models", "docs/repository.md says more.")
    group.add_argument(
        "--models",
        type=Path,
        metavar="DIR|FILE",
        help="serve the models of a folder, or of a TOML file, each by its name; they are loaded "
        "when they are asked for (instead of MODEL)",
    )
    group.add_argument(
        "--models-memory",
        type=parse_size,
        metavar="SIZE",
        help="what all models that are loaded may take together; for more, those that were used "
        "least recently are unloaded (default: the file's memory, or three quarters of what is "
        "free)",
    )

"""Write a prefix that is on disk to a file, for another machine.

  penstock cache export /var/cache/penstock-kv 3f9a manual.kvprefix

'penstock cache import' takes it there, for engines of the same model, options and version of
Penstock. Unless they are encrypted on disk, keys and values are not encrypted in the file: whoever
reads it learns of the prompt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.cli.cache_places import add_prefix_argument, folder_of
from penstock.cli.quantity import size
from penstock.terminal import encodable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a folder of --kv-disk")
    add_prefix_argument(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to write")


def run(args: argparse.Namespace) -> int:
    from penstock.engine.block_checksum import block_checksum
    from penstock.kvstore.parcel import export
    from penstock.kvstore.prefixes import found

    root = folder_of(args.folder)
    (prefix,) = found(root, [args.prefix])
    written = export(root, prefix, args.file, block_checksum)
    told = f"{args.file}: {prefix.tokens:,} tokens of {prefix.model}, {size(written)}"
    print(encodable(told, sys.stdout))
    return 0

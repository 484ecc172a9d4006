"""Pin a prefix of a file that 'penstock cache export' has written.

  penstock cache import /var/cache/penstock-kv manual.kvprefix
  penstock cache import /var/cache/penstock-kv:100GB manual.kvprefix --unseen

The file is checked to its last byte before anything of it is kept. Its blocks must be those of
engines that use the folder: of the same model, options and version of Penstock. Keys and values
become part of answers, so import only what you trust.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.cli.cache_places import folder_and_limit
from penstock.terminal import encodable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR[:SIZE]",
        help="a folder of --kv-disk; its size is that of the engine that used it last, or SIZE "
        "where that is more",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to read")
    parser.add_argument("--label", help="what to call it, in place of its own label")
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="keep it though no engine has used the folder with its model yet",
    )


def run(args: argparse.Namespace) -> int:
    from penstock.kvstore.parcel import import_prefix
    from penstock.kvstore.pinned_prefix import check_label

    if args.label is not None:
        check_label(args.label)
    root, limit = folder_and_limit(args.folder)
    manifest, new = import_prefix(root, limit, args.file, args.label, args.unseen)
    what = f"{manifest.tail.hex()[:12]}: {manifest.tokens:,} tokens of {manifest.about.model}"
    print(encodable(f"{what} are pinned" if new else f"{what} were pinned before", sys.stdout))
    return 0

"""Give a pinned prefix another label: of a folder of --kv-disk, or of a running server.

  penstock cache rename /var/cache/penstock-kv 3f9a manual
  penstock cache rename http://127.0.0.1:8000 manual "manual of 2025"
  penstock cache rename /var/cache/penstock-kv manual ""

An empty LABEL takes the label away. What is pinned stays as it is.
"""

from __future__ import annotations

import argparse
import sys

from penstock.cli.cache_places import (
    add_place_argument,
    add_prefix_argument,
    add_server_arguments,
    asked_at,
    folder_at,
    is_server,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place_argument(parser)
    add_prefix_argument(parser)
    parser.add_argument("label", metavar="LABEL", help="what to call it from now on")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from penstock.kvstore.pinned_prefix import check_label
    from penstock.kvstore.prefixes import Prefix, found, rename
    from penstock.terminal import encodable

    check_label(args.label)
    if is_server(args.place):
        answer = asked_at(args, "rename", {"prefix": args.prefix, "label": args.label})
        prefix = msgspec.convert(answer, Prefix)
    else:
        root = folder_at(args)
        (before,) = found(root, [args.prefix])
        prefix = rename(root, before, args.label)
    told = f"is called {prefix.label!r}" if prefix.label else "has no label"
    print(encodable(f"{prefix.id[:12]} {told}", sys.stdout))
    return 0

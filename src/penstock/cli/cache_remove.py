"""Remove prefixes from disk, pinned or not: of a folder of --kv-disk, or of a running server.

  penstock cache rm /var/cache/penstock-kv 3f9a
  penstock cache rm http://127.0.0.1:8000 "system prompt"

What other prefixes begin with stays. An engine that runs forgets within a second what it would have
read; what it has in memory stays until that is reused. The bytes on disk are written over as room
is needed; those of pinned prefixes are given back at once.
"""

from __future__ import annotations

import argparse
import sys

from penstock.cli.cache_places import (
    add_place_argument,
    add_server_arguments,
    asked,
    folder_at,
    is_server,
    link_to,
    queried,
)
from penstock.cli.quantity import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place_argument(parser)
    parser.add_argument(
        "prefixes",
        nargs="+",
        metavar="PREFIX",
        help="the first digits of one, at least four, or its label, as 'penstock cache list' "
        "shows them",
    )
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from penstock.kvstore.prefixes import Prefix, found, remove
    from penstock.terminal import encodable

    if is_server(args.place):
        path = queried("/admin/cache/remove", model=args.model)
        answer = asked(link_to(args.place, args), path, {"prefixes": args.prefixes})
        gone = msgspec.convert(answer["data"], list[Prefix])
    else:
        root = folder_at(args)
        gone = found(root, args.prefixes)
        for each in gone:
            remove(root, each)
    for each in gone:
        name = f"{each.id[:12]} {each.label}".rstrip()
        print(
            encodable(
                f"{name}: {each.tokens:,} tokens, {size(each.bytes)}, are removed", sys.stdout
            )
        )
    return 0

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
    add_prefix_argument,
    add_server_arguments,
    asked_at,
    folder_at,
    is_server,
)
from penstock.cli.quantity import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place_argument(parser)
    add_prefix_argument(parser, several=True)
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from penstock.kvstore.prefixes import Prefix, found, remove
    from penstock.terminal import encodable

    if is_server(args.place):
        answer = asked_at(args, "remove", {"prefixes": args.prefixes})
        gone = msgspec.convert(answer["data"], list[Prefix])
    else:
        root = folder_at(args)
        gone = found(root, args.prefixes)
        for each in gone:
            remove(root, each)
    for each in gone:
        name = f"{each.id[:12]} {each.label}".rstrip()
        told = f"{name}: {each.tokens:,} tokens, {size(each.bytes)}, are removed"
        print(encodable(told, sys.stdout))
    return 0

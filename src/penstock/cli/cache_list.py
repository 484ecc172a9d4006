"""Show the prefixes that are kept on disk: of a folder of --kv-disk, or of a running server.

  penstock cache list /var/cache/penstock-kv
  penstock cache list http://127.0.0.1:8000

PREFIX and KIND are the first digits of longer numbers: KIND stands for all that the blocks depend
on, such as the weights and the version of Penstock. A prefix that others begin with is not shown,
unless it is pinned. 'cut' are those of which a part has made room.
"""

from __future__ import annotations

import argparse
import json

from penstock.cli.cache_places import (
    add_place_argument,
    add_server_arguments,
    asked_at,
    folder_at,
    is_server,
    shown,
)

MOST: int = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place_argument(parser)
    parser.add_argument("--json", action="store_true", help="write JSON, a prefix a line")
    parser.add_argument(
        "--pinned", action="store_true", help="only those that are pinned, which stay"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"all, not the {MOST} that were used last"
    )
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import msgspec

    from penstock.kvstore.prefixes import Prefix, prefixes

    if is_server(args.place):
        found = msgspec.convert(asked_at(args, "prefixes")["data"], list[Prefix])
    else:
        found = prefixes(folder_at(args))
    if args.pinned:
        found = [each for each in found if each.pinned]
    if args.json:
        for each in found:
            # Escapes in place of what an encoding may not have; the same value.
            print(json.dumps(msgspec.to_builtins(each), separators=(",", ":")))
        return 0
    if not found:
        print("no prefix is kept there")
        return 0
    some = found if args.all else found[:MOST]
    print("\n".join(shown(some)))
    if len(some) < len(found):
        print(f"and {len(found) - len(some)} that were used before; --all shows them")
    return 0

"""Where prefixes are that commands of ``penstock cache`` are about, and how they are shown."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from penstock.cli.options import option_name
from penstock.cli.parser import UsageError
from penstock.cli.quantity import age, size
from penstock.cli.server_key import server_key
from penstock.errors import ConfigError, PenstockError
from penstock.kv_disk_config import KvDisk, absolute_path
from penstock.server_link import ServerLink
from penstock.server_url import split_server_url
from penstock.terminal import encodable

if TYPE_CHECKING:
    from penstock.kvstore.prefixes import Prefix

KEY_VARIABLE: Final = "PENSTOCK_ADMIN_KEY"
TIMEOUT_S: Final = 60.0


def add_key_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="of a server: the environment variable that holds its admin key (default: "
        f"{KEY_VARIABLE}, if it is set)",
    )


def add_place_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="DIR|URL", help="a folder of --kv-disk, or a server")


def add_prefix_argument(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """``prefix``, or ``prefixes`` where there may be several."""
    parser.add_argument(
        "prefixes" if several else "prefix",
        nargs="+" if several else None,
        metavar="PREFIX",
        help="the first digits of its id, at least four, or its label, as 'penstock cache list' "
        "shows them; KIND/PREFIX where several kinds of blocks have it",
    )


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """What a place needs besides, where it is a server."""
    parser.add_argument(
        "--model", metavar="MODEL", help="of a server of several models: the one that is asked"
    )
    add_key_argument(parser)


def is_server(place: str) -> bool:
    return place.lower().startswith(("http://", "https://"))


def link_to(url: str, args: argparse.Namespace) -> ServerLink:
    """A server, with the key that the arguments name. Raises UsageError."""
    parts = split_server_url(url)
    base = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return ServerLink(base, server_key(args.api_key_env, KEY_VARIABLE))


def asked(link: ServerLink, path: str, body: object = None, timeout: float = TIMEOUT_S) -> Any:
    """The JSON that a server answers. Raises PenstockError."""
    sent = None if body is None else msgspec.json.encode(body)
    with link.open(path, timeout, sent) as answer:
        content = answer.read()
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise PenstockError(
            f"{link.url} answers otherwise than Penstock's server: {error}"
        ) from None


def asked_at(args: argparse.Namespace, action: str, body: object = None) -> Any:
    """What the server at a command's place answers to an action below ``/admin/cache``. Raises
    PenstockError."""
    path = queried(f"/admin/cache/{action}", model=args.model)
    return asked(link_to(args.place, args), path, body)


def queried(address: str, **query: str | None) -> str:
    """A path with those of the parameters that there are."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{address}?{urlencode(given)}" if given else address


def folder_at(args: argparse.Namespace) -> Path:
    """The folder that a command names where it might name a server. Raises UsageError for what it
    says of one."""
    for name in ("model", "api_key_env"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"argument {option_name(name)}: it is for a server, and {args.place} is a folder"
            )
    return folder_of(args.place)


def folder_of(text: str) -> Path:
    """The folder that a command names, as DIR or, as --kv-disk has it, DIR:SIZE."""
    return _split(text)[0]


def folder_and_limit(text: str) -> tuple[Path, int]:
    """The folder, and its size: as an engine has it, or as it is given where that is more; a
    command does not make others' blocks give way to a smaller one. Raises UsageError."""
    from penstock.kvstore.directory import limit_of

    folder, limit = _split(text)
    limit = max((each for each in (limit, limit_of(folder)) if each is not None), default=None)
    if limit is None and ":" in text and not folder.exists():
        KvDisk.parse(text)  # raises what is wrong with it
    if limit is None:
        raise UsageError(f"no engine has used {folder} yet; give its size, too, as {folder}:100GB")
    return folder, limit


def _split(text: str) -> tuple[Path, int | None]:
    if not text:
        raise UsageError("the name of the folder is empty; name the one of --kv-disk")
    try:
        path = absolute_path("the folder", text)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if os.path.lexists(path):
        return path, None
    try:
        disk = KvDisk.parse(text)
    except ConfigError:
        return path, None
    return Path(disk.folder), disk.bytes


def shown(prefixes: list[Prefix]) -> list[str]:
    """A table of prefixes."""
    width = max((len(each.model) for each in prefixes), default=0)
    width = max(width, len("MODEL"))
    lines = [
        f"{'PREFIX':<12}  {'MODEL':<{width}}  {'KIND':<8}  {'TOKENS':>9}  {'SIZE':>8}  "
        f"{'':<6}  {'USED':<14}  LABEL"
    ]
    now = time.time()
    for each in prefixes:
        state = "pinned" if each.pinned else "" if each.whole else "cut"
        used = age(max(now - each.used_at, 0)) if each.used_at else "never"
        lines.append(
            f"{each.id[:12]:<12}  {each.model:<{width}}  {each.kind[:8]:<8}  {each.tokens:>9,}  "
            f"{size(each.bytes):>8}  {state:<6}  {used:<14}  {each.label}".rstrip()
        )
    return [encodable(line, sys.stdout) for line in lines]

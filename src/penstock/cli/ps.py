"""Show the models of a running server: which are loaded, which come, and what they take.

  penstock ps
  penstock ps http://gpu-box:8000

It asks any server for its models, and a server of several ('penstock serve --models') for what each
does.
"""

from __future__ import annotations

import argparse
from typing import Final

import msgspec

from penstock.cli.quantity import age, size
from penstock.cli.server_key import server_key
from penstock.errors import PenstockError
from penstock.server_link import ServerLink
from penstock.server_url import split_server_url

KEY_VARIABLE: Final = "PENSTOCK_API_KEY"
TIMEOUT_S: Final = 30.0
_LOADED: Final = "loaded"


class _State(msgspec.Struct):
    value: str = _LOADED
    phase: str = ""
    failure: str | None = None
    memory_bytes: int | None = None
    open: int = 0
    waiting: int = 0
    idle_s: float | None = None


class _Model(msgspec.Struct):
    id: str
    status: _State = msgspec.field(default_factory=_State)


class _Models(msgspec.Struct):
    data: list[_Model]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="the server (default: http://127.0.0.1:8000)",
    )
    parser.add_argument("--all", action="store_true", help="also those that are not loaded")
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="the environment variable that holds the server's key (default: "
        f"{KEY_VARIABLE}, if it is set)",
    )


def run(args: argparse.Namespace) -> int:
    parts = split_server_url(args.url)
    url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    link = ServerLink(url, server_key(args.api_key_env, KEY_VARIABLE))
    with link.open("/v1/models", TIMEOUT_S) as answer:
        body = answer.read()
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError as error:
        raise PenstockError(f"{url} answers otherwise than a server of models: {error}") from None
    shown = [each for each in models if args.all or each.status.value != "unloaded"]
    if not shown:
        print(f"none of {len(models)} models is loaded; --all shows them")
        return 0
    width = max(len("MODEL"), *(len(each.id) for each in shown))
    print(f"{'MODEL':<{width}}  {'STATE':<9}  {'MEMORY':>8}  {'REQUESTS':>8}  USED")
    for each in shown:
        print(_line(each, width))
    return 0


def _line(model: _Model, width: int) -> str:
    status = model.status
    memory = "" if status.memory_bytes is None else size(status.memory_bytes)
    asked = "" if status.memory_bytes is None else str(status.open + status.waiting)
    used = "now" if status.open else "" if status.idle_s is None else age(status.idle_s)
    told = status.phase or status.failure or used
    return f"{model.id:<{width}}  {status.value:<9}  {memory:>8}  {asked:>8}  {told}".rstrip()

"""``penstock tune --apply``: has a server use a profile that was proposed for it."""

from __future__ import annotations

import argparse
import http.client
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.observe import KEY_VARIABLE
from penstock.cli.server_key import server_key
from penstock.errors import PenstockError
from penstock.profile import Profile
from penstock.server_link import RefusedError, ServerLink, cause
from penstock.terminal import harmless

if TYPE_CHECKING:
    from penstock.server.status_structs import Switched

_PATH: Final = "/admin/profile"
_WITHIN_S: Final = 600
"""What a server takes where it is not told."""
_PATIENCE_S: Final = 3600
"""Seconds beyond these, for requests that are open to end and an engine to start."""
_MAX_ANSWER: Final = 1 << 20
_KEY: Final = (
    "; name the environment variable that holds the server's admin key by --api-key-env, and start "
    f"a server that has none with {KEY_VARIABLE} or --admin-key-file"
)
_OLD: Final = (
    "; it is no server of Penstock, or an older one, which has no such endpoint: start the next "
    "server with the profile"
)
_HINTS: Final = {401: _KEY, 403: _KEY, 404: _OLD, 405: _OLD, 501: _OLD}


def apply(url: str, args: argparse.Namespace, profile: Profile) -> None:
    """Have the server at ``url`` use a profile, and say what came of it. Raises PenstockError with
    the cause where it does not."""
    from penstock.server.status_structs import Switched

    link = ServerLink(url, server_key(args.api_key_env, KEY_VARIABLE))
    asked: dict[str, object] = {"profile": profile}
    within: int | None = args.apply_within
    if within is not None:
        asked["within_s"] = within
    patience = (_WITHIN_S if within is None else within) + _PATIENCE_S
    _say(f"asking {url} to use it, once nobody asks it for anything")
    try:
        with link.open(_PATH, patience, msgspec.json.encode(asked)) as reply:
            switched = msgspec.json.decode(reply.read(_MAX_ANSWER), type=Switched)
    except RefusedError as error:
        raise _not_applied(args, f"{error}{_HINTS.get(error.status, '')}") from None
    except (PenstockError, OSError, http.client.HTTPException) as error:
        why = error if isinstance(error, PenstockError) else cause(error)
        raise PenstockError(
            f"it is not known whether the profile was applied: {why}; GET /admin/status shows it, "
            f"and the profile is in {args.out}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"{url}{_PATH} is of another version of Penstock: {error}; use that of the server"
        raise _not_applied(args, why) from None
    _say(_told(switched))
    for note in switched.notes:
        _say(f"note     {note}")


def _told(done: Switched) -> str:
    if not done.seconds:
        return "applied  the profile is in force, with the same engine"
    held = f"{done.held:,} requests were held, for {done.longest_held_s:,.1f} s at most"
    return (
        f"applied  the engine was exchanged in {done.seconds:,.1f} s, after {done.waited_s:,.1f} s "
        f"until no request was open; {held if done.held else 'none had to wait'}"
    )


def _not_applied(args: argparse.Namespace, why: str) -> PenstockError:
    return PenstockError(f"the profile was not applied, and is in {args.out}: {why}")


def _say(text: str) -> None:
    print(harmless(text, sys.stdout), flush=True)

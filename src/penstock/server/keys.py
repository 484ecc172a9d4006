"""API keys: where they come from, and who may do what."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import ConfigError
from penstock.server.callers import Caller, address_name
from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequest

KEYS_VARIABLE = "PENSTOCK_API_KEYS"
ADMIN_VARIABLE = "PENSTOCK_ADMIN_KEY"
OTHER_HEADERS = ("x-api-key", "api-key")
"""Headers in which clients of other servers (Anthropic's, Azure's) send the key."""
PUBLIC = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")
"""Paths that need no key: health checks, which reveal nothing else."""
WORKLOAD = "/engine/workload"
"""The path that tells what all callers have asked: it takes the admin key where there are keys."""
ADMIN_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Paths outside of ``/admin`` that take the admin key, where clients of vLLM look for them."""
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1000
BEST_PRIORITY = -(2**31)


@dataclass(frozen=True)
class Key:
    """The digest of an API key, and what its holder may do; the key itself is not kept."""

    digest: bytes
    weight: float = 1.0
    best_priority: int | None = None
    """Lowest priority number of its holder; None means the server's default bound."""


@dataclass(frozen=True)
class Keys:
    users: tuple[Key, ...] = ()
    """Keys of users; if empty, everybody may ask."""
    admin: bytes | None = None
    """Digest of the admin key; None means that nobody may administer the server."""
    best_priority: int = 0
    """Lowest priority number without a key, or with a key that sets none."""

    @classmethod
    def read(
        cls,
        key_file: Path | None,
        admin_key_file: Path | None,
        environment: Mapping[str, str] = os.environ,
        best_priority: int = 0,
    ) -> Keys:
        """Read keys from files, one per line, and from the environment. Raises ConfigError."""
        given = environment.get(KEYS_VARIABLE, "").split(",")
        users = [
            _key(entry, f"{KEYS_VARIABLE}, entry {number}")
            for number, entry in enumerate(given, 1)
            if entry.strip()
        ]
        if KEYS_VARIABLE in environment and not users:
            raise ConfigError(f"{KEYS_VARIABLE} is set and holds no key; unset it or give keys")
        if key_file is not None:
            users += [_key(line, where) for line, where in _lines(key_file)]
        admin_key = read_admin_key(admin_key_file, environment)
        distinct = tuple(dict.fromkeys(users))
        if len({key.digest for key in distinct}) < len(distinct):
            raise ConfigError("a key is given twice, with different properties; give it once")
        admin = None if admin_key is None else _digest(admin_key)
        if admin in [key.digest for key in distinct]:
            raise ConfigError("the admin key is also a user's key; give it a value of its own")
        return cls(distinct, admin, best_priority)

    @property
    def any(self) -> bool:
        """Whether somebody, a user or the administrator, has a key."""
        return bool(self.users) or self.admin is not None

    @property
    def best_of_all(self) -> int:
        """The lowest priority that any user may ask for."""
        return min([self.best_priority, *(key.best_priority or 0 for key in self.users)])

    def is_user(self, key: str) -> bool:
        """Whether this is a user's key; compared in constant time."""
        return self._found(key) is not None

    def is_admin(self, key: str) -> bool:
        return self.admin is not None and hmac.compare_digest(_digest(key), self.admin)

    def caller(self, key: str) -> Caller:
        """Return the holder of a valid key. The admin may ask for any priority."""
        found = self._found(key)
        if found is None:
            return Caller(fingerprint(key), best_priority=None)
        best = self.best_priority if found.best_priority is None else found.best_priority
        return Caller(fingerprint(key), found.weight, best)

    def _found(self, key: str) -> Key | None:
        digest, found = _digest(key), None
        for each in self.users:
            if hmac.compare_digest(digest, each.digest):
                found = each
        return found


class KeyCheck:
    """ASGI middleware that checks the API key of each request."""

    def __init__(self, app: ASGIApp, keys: Keys, open_paths: Collection[str] = ()) -> None:
        """``open_paths`` need no key either, to be read: files that are the same for everybody.
        What is sent to the same paths needs one."""
        self._app = app
        self._keys = keys
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        path, keys, request = scope["path"], self._keys, OpenRequest.of(scope)
        if path in PUBLIC or (path in self._open and scope["method"] != "POST"):
            return
        request.caller = Caller(address_name(scope.get("client")), 1.0, keys.best_priority)
        admin = path == "/admin" or path.startswith("/admin/")
        admin = admin or path in ADMIN_PATHS or (path == WORKLOAD and keys.any)
        if admin and keys.admin is None:
            raise ApiError(
                403,
                f"this server was started without an admin key; set {ADMIN_VARIABLE} or give "
                "--admin-key-file",
                type="permission_error",
                code="no_admin_key",
            )
        if not admin and not keys.users:
            return
        key = given_key(Headers(scope=scope))
        if key is None:
            raise _refused(
                "the header 'Authorization: Bearer KEY' is missing; 'x-api-key: KEY' and "
                "'api-key: KEY' are taken as well"
            )
        is_user, is_admin = keys.is_user(key), keys.is_admin(key)
        if not is_user and not is_admin:
            raise _refused("the API key is not valid here")
        if admin and not is_admin:
            raise ApiError(
                403,
                "this takes the admin key",
                type="permission_error",
                code="admin_key_required",
            )
        request.key = fingerprint(key)
        request.caller = keys.caller(key)


def read_admin_key(path: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The admin key from a file or from the environment; None if there is none. Raises
    ConfigError."""
    found = [environment[ADMIN_VARIABLE]] if ADMIN_VARIABLE in environment else []
    if path is not None:
        found += [line for line, _ in _lines(path)]
    if len(found) > 1:
        raise ConfigError("there may be one admin key, and several are given")
    if not found:
        return None
    key = found[0].strip()
    _checked(key, "the admin key")
    return key


def given_key(headers: Headers) -> str | None:
    """Return the key of a request; if several headers have one, that of the first."""
    key = bearer(headers.get("authorization", ""))
    return key or next((headers[name].strip() for name in OTHER_HEADERS if headers.get(name)), None)


def bearer(header: str) -> str | None:
    """Return the key in an Authorization header; None if there is none."""
    scheme, _, key = header.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def fingerprint(key: str) -> str:
    """Return the name of a key in logs: enough to tell keys apart, too little to recover one."""
    return _digest(key).hex()[:8]


def _refused(message: str) -> ApiError:
    return ApiError(401, message, type="authentication_error", code="invalid_api_key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a file that hold a key, each with its name for messages; empty lines and
    those that begin with # are skipped."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the keys in {path} cannot be read: {reason}") from None
    found = [
        (line.strip(), f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    ]
    if not found:
        raise ConfigError(f"{path} holds no key; write one a line")
    return found


def _key(line: str, where: str) -> Key:
    """Parse ``KEY [weight=NUMBER] [priority=NUMBER]``. Raises ConfigError, which never quotes a
    key."""
    key, *properties = line.split()
    digest = _checked(key, where)
    values: dict[str, str] = {}
    for each in properties:
        name, equals, value = each.partition("=")
        if not equals or name not in ("weight", "priority"):
            raise ConfigError(
                f"{where}: behind a key there may be weight=NUMBER and priority=NUMBER, after a "
                "space each; an API key may hold printable ASCII without spaces alone"
            )
        if name in values:
            raise ConfigError(f"{where}: {name} is given twice")
        values[name] = value
    weight, best = 1.0, None
    if "weight" in values:
        weight = _number(values["weight"])
        if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise ConfigError(
                f"{where}: weight must be a number from {LEAST_WEIGHT} to {MOST_WEIGHT}, not "
                f"{values['weight']!r}"
            )
    if "priority" in values:
        best = best_priority(values["priority"])
        if best is None:
            raise ConfigError(
                f"{where}: priority is the best that the key may ask for, a whole number from "
                f"{BEST_PRIORITY} to 0 (lower goes first), not {values['priority']!r}"
            )
    return Key(digest, weight, best)


def best_priority(text: str) -> int | None:
    """Parse a bound of priorities; None if ``text`` is not one."""
    if not re.fullmatch(r"0|-[1-9][0-9]{0,9}", text):
        return None
    value = int(text)
    return value if value >= BEST_PRIORITY else None


def _number(text: str) -> float:
    """Parse a number; NaN if ``text`` is not one."""
    return float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else math.nan


def _checked(key: str, where: str) -> bytes:
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise ConfigError(f"{where}: an API key may hold printable ASCII without spaces alone")
    return _digest(key)

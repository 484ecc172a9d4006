"""API keys: where they come from, and who may do what."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import ConfigError
from penstock.server.open_requests import OpenRequest
from penstock.server.openai.errors import ApiError

KEYS_VARIABLE = "PENSTOCK_API_KEYS"
ADMIN_VARIABLE = "PENSTOCK_ADMIN_KEY"
OTHER_HEADERS = ("x-api-key", "api-key")
"""Where clients made for other servers (Anthropic's, Azure's) put the key."""
PUBLIC = ("/health", "/ready")
"""What those who watch over a server ask; they tell nothing else."""


@dataclass(frozen=True)
class Keys:
    """Digests of the keys; the keys themselves are not kept."""

    users: tuple[bytes, ...] = ()
    """Empty: everybody may ask."""
    admin: bytes | None = None
    """None: nobody may administer."""

    @classmethod
    def read(
        cls,
        key_file: Path | None,
        admin_key_file: Path | None,
        environment: Mapping[str, str] = os.environ,
    ) -> Keys:
        """From files, one key a line, and from the environment. Raises ConfigError."""
        users = [key for key in environment.get(KEYS_VARIABLE, "").split(",") if key.strip()]
        if KEYS_VARIABLE in environment and not users:
            raise ConfigError(f"{KEYS_VARIABLE} is set and holds no key; unset it or give keys")
        if key_file is not None:
            users += _lines(key_file)
        admins = [environment[ADMIN_VARIABLE]] if ADMIN_VARIABLE in environment else []
        if admin_key_file is not None:
            admins += _lines(admin_key_file)
        if len(admins) > 1:
            raise ConfigError("there may be one admin key, and several are given")
        digests = tuple(dict.fromkeys(_checked(key) for key in users))
        admin = _checked(admins[0]) if admins else None
        if admin in digests:
            raise ConfigError("the admin key is also a user's key; give it a value of its own")
        return cls(digests, admin)

    def is_user(self, key: str) -> bool:
        """In time that does not depend on how much of which key was right."""
        return _among(key, self.users)

    def is_admin(self, key: str) -> bool:
        return self.admin is not None and _among(key, (self.admin,))


class KeyCheck:
    """ASGI middleware: lets through what its key allows."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        path, keys = scope["path"], self._keys
        if path in PUBLIC:
            return
        admin = path == "/admin" or path.startswith("/admin/")
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
        OpenRequest.of(scope).key = fingerprint(key)


def given_key(headers: Headers) -> str | None:
    """The key that a request comes with, where several headers have one that of the first."""
    key = bearer(headers.get("authorization", ""))
    return key or next((headers[name].strip() for name in OTHER_HEADERS if headers.get(name)), None)


def bearer(header: str) -> str | None:
    """The key in an Authorization header, None where there is none."""
    scheme, _, key = header.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def fingerprint(key: str) -> str:
    """What logs call a key: enough to tell keys apart, too little to find one."""
    return _digest(key).hex()[:8]


def _refused(message: str) -> ApiError:
    return ApiError(401, message, type="authentication_error", code="invalid_api_key")


def _among(key: str, digests: Iterable[bytes]) -> bool:
    digest = _digest(key)
    found = False
    for each in digests:
        found |= hmac.compare_digest(digest, each)
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _lines(path: Path) -> list[str]:
    """The keys in a file; empty lines and those that begin with # are none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the keys in {path} cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key; write one a line")
    return keys


def _checked(key: str) -> bytes:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise ConfigError("an API key may hold printable ASCII without spaces alone")
    return _digest(key)

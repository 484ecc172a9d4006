"""The files of the page, as they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FILES = "/page/"
"""What the paths of all files begin with but those of the views."""
VIEWS = ("/", "/engine", "/docs")
"""Paths that all have the same document; its scripts show the view."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A text that is to become markup is refused by the browser: no script of ours has one.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    # Kept, and asked for each time whether it is still the same: an upgrade is seen at once.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Asset:
    """One file, with the headers that it is sent with."""

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> Self:
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, _TYPES[suffix], f'"{digest}"')

    def answer(self, request: Request) -> Response:
        """The file, or 304 where the client has it."""
        headers = {**_HEADERS, "etag": self.etag}
        given = request.headers.get("if-none-match", "").split(",")
        known = [tag.strip().removeprefix("W/") for tag in given]
        if "*" in known or self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


class Bundle:
    """All files of the page, by their paths on the server; read once, when it starts."""

    def __init__(self, assets: Mapping[str, Asset]) -> None:
        self._assets = dict(assets)

    @classmethod
    def read(cls) -> Self:
        """The files of this package."""
        folder = files("penstock.server.page").joinpath("static")
        document = folder.joinpath("index.html")
        assets = dict.fromkeys(VIEWS, Asset.of(document.read_bytes(), ".html"))
        return cls(assets | dict(_below(folder, FILES)))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._assets)

    async def answer(self, request: Request) -> Response:
        """Answer for one of :attr:`paths`."""
        asset = self._assets.get(request.url.path)
        if asset is None:
            raise HTTPException(404)
        return asset.answer(request)


def _below(folder: Traversable, path: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        suffix = entry.name[entry.name.rfind(".") :]
        if entry.is_dir():
            found += _below(entry, f"{path}{entry.name}/")
        elif suffix in _TYPES and suffix != ".html":
            found.append((path + entry.name, Asset.of(entry.read_bytes(), suffix)))
    return found

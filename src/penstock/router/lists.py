"""Lists that are those of all replicas together: of models, in each dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.router.exchange import Headers, Timeouts, UpstreamError
from penstock.router.reading import read, said
from penstock.router.replica import Replica
from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.kserve.paths import INDEX
from penstock.server.sse import unless_ended

_ASKED_WITH: Final = (b"authorization", b"x-api-key", b"api-key", b"via", b"content-type")
"""The headers with which a list is asked for."""
_PATIENCE: Final = Timeouts(connect=2.0, head=5.0, idle=5.0)
_MAX_LIST: Final = 4 << 20

Entry = dict[str, Any]


class Listing(NamedTuple):
    """A list that each replica has of its own."""

    method: str
    path: str
    field: str
    """The field of the answer that has the list; empty: the answer is the list."""
    names: tuple[str, ...]
    """The fields of an entry that it is told from others by."""
    rest: Mapping[str, Any] = MappingProxyType({})
    """The other fields of the answer."""

    def entries(self, data: bytes) -> list[Entry] | None:
        """Those of a replica's answer; None for what is no such list."""
        if not self.field:
            return read(data, list[Entry])
        answer = read(data, dict[str, msgspec.Raw]) or {}
        return read(answer.get(self.field, b"null"), list[Entry])

    def answer(self, entries: list[Entry]) -> bytes:
        told = {**self.rest, self.field: entries} if self.field else entries
        return msgspec.json.encode(told)


LISTINGS: Final = (
    Listing("GET", "/v1/models", "data", ("id",), {"object": "list"}),
    Listing("GET", "/api/tags", "models", ("name",)),
    Listing("GET", "/api/ps", "models", ("name",)),
    Listing("POST", INDEX, "", ("name", "version")),
)


async def listed(
    listing: Listing,
    request: Request,
    body: bytes,
    replicas: Sequence[Replica],
    via: tuple[bytes, bytes],
) -> Response:
    """The entries of these replicas, each once, by their names. The ``body`` of the request was
    read, and ``via`` is the header that says what it has passed. Raises ApiError."""
    asked_with = [(name, value) for name, value in request.scope["headers"] if name in _ASKED_WITH]
    headers = [*asked_with, via]
    asking = asyncio.gather(*(_asked(listing, each, headers, body) for each in replicas))

    async def answers() -> list[tuple[int, bytes]]:
        return await asking

    found: dict[tuple[str, ...], Entry] = {}
    is_listed = False
    refusal: tuple[int, bytes] | None = None
    troubles = []
    asked = await unless_ended(request, request.receive, answers())
    for replica, (status, data) in zip(replicas, asked, strict=True):
        entries = listing.entries(data) if status == 200 else None
        if entries is not None:
            is_listed = True
            for entry in entries:
                found.setdefault(tuple(str(entry.get(name)) for name in listing.names), entry)
        elif status in (401, 403):
            refusal = refusal or (status, data)
        else:
            troubles.append(f"{replica.url}: {_why(status, data)}")
    if not is_listed and refusal is not None:
        return Response(refusal[1], refusal[0], media_type="application/json")
    if not is_listed:
        why = f"no replica lists its models: {'; '.join(troubles)}"
        raise unavailable(why, "no_models", RETRY_AFTER_S)
    answer = listing.answer([found[names] for names in sorted(found)])
    return Response(answer, media_type="application/json")


async def _asked(
    listing: Listing, replica: Replica, headers: Headers, body: bytes
) -> tuple[int, bytes]:
    """Status and body; status 0, and why there is none."""
    try:
        return await replica.pool.fetch(
            listing.method, listing.path, headers, body, _PATIENCE, _MAX_LIST
        )
    except UpstreamError as error:
        return 0, str(error).encode()


def _why(status: int, data: bytes) -> str:
    """Why a replica lists no models."""
    if status == 200:
        return "what it answers is no list of models"
    return data.decode() if not status else said(data) or f"status {status}"

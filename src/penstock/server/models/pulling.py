"""``POST /api/pull`` and ``DELETE /api/delete``: the files of models of the hub, for Ollama's
clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.repository.catalogue import ModelEntry
from penstock.repository.repository import Repository
from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError
from penstock.server.fields.rules import Rule, any_of
from penstock.server.keys import given_key
from penstock.server.models.front import ModelsFront
from penstock.server.models.long_work import in_own_thread
from penstock.server.models.named import Asked
from penstock.server.models.served import ServedModel
from penstock.server.ollama import errors
from penstock.server.ollama.reading import read_undeclared
from penstock.server.options import ServerOptions
from penstock.server.sse import LINES, EventStream, unless_ended
from penstock.weights.hub_pull import pull
from penstock.weights.store import remove_stored

PULL: Final = "/api/pull"
DELETE: Final = "/api/delete"
MAX_BODY_BYTES: Final = 4096
SIGN_S: Final = 1.0
"""Seconds between two lines of a pull: they show proxies that it goes on."""
_RULES: Final = (
    Rule("name", (PULL, DELETE), "an older name of `model`", alias="model"),
    Rule("insecure", (PULL,), "the hub is asked by HTTPS", advice=any_of(bool)),
)  # fmt: skip


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /api/pull``."""

    model: str
    stream: bool = True


class DeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``DELETE /api/delete``."""

    model: str


class PullLine(msgspec.Struct, frozen=True):
    """A line of the answer of a pull."""

    status: str


class PullHandlers:
    """The handlers. Where there are keys they take the admin's: what they do holds for all."""

    def __init__(
        self, repository: Repository[ServedModel], front: ModelsFront, options: ServerOptions
    ) -> None:
        self._repository = repository
        self._front = front
        self._keys = options.keys
        self._bodies = Bodies(MAX_BODY_BYTES, options.body_timeout_s)
        self._pulls = BodyDecoder(PullRequest, _RULES)
        self._deletes = BodyDecoder(DeleteRequest, _RULES)
        self._pulling: set[asyncio.Task[None]] = set()

    async def pull(self, request: Request) -> Response | EventStream:
        """Download a model of the catalogue that is of the hub, or go on with it. It goes on when
        the client leaves."""
        self._check(request)
        body = (await self._bodies.decoded(request, self._pulls, read_undeclared)).request
        entry = self._front.entry(Asked(body.model))
        pulling = asyncio.ensure_future(_pulled(entry))
        self._pulling.add(pulling)
        pulling.add_done_callback(self._pulling.discard)
        if body.stream:
            return EventStream(
                request, _lines(entry, pulling), errors.line, errors.body, media_type=LINES
            )

        async def done() -> None:
            await asyncio.shield(pulling)

        await unless_ended(request, request.receive, done())
        return _json(PullLine("success"))

    async def delete(self, request: Request) -> Response:
        """Delete the files of a model of the hub, which is unloaded before."""
        self._check(request)
        body = (await self._bodies.decoded(request, self._deletes, read_undeclared)).request
        entry = self._front.entry(Asked(body.model))
        source = entry.config.model.partition(":")[0]

        async def done() -> None:
            await self._repository.unload(entry.name)
            await asyncio.to_thread(remove_stored, source)

        try:
            await unless_ended(request, request.receive, done())
        except PenstockError as error:
            if isinstance(error, ApiError):
                raise
            raise ApiError(404, f"{error}; files that are not the hub's are not deleted") from None
        return Response()

    def _check(self, request: Request) -> None:
        """Raise ApiError unless the caller may do what holds for all."""
        keys = self._keys
        if keys.any and not keys.is_admin(given_key(Headers(scope=request.scope)) or ""):
            raise ApiError(
                403,
                "this takes the admin key",
                type="permission_error",
                code="admin_key_required",
            )


async def _pulled(entry: ModelEntry) -> None:
    config = entry.config
    try:
        await in_own_thread(lambda: pull(config.model, config.revision))
    except PenstockError as error:
        raise ApiError(502, str(error), type="server_error", code="not_pulled") from None


async def _lines(entry: ModelEntry, pulling: asyncio.Task[None]) -> AsyncGenerator[bytes, None]:
    yield _line(f"pulling {entry.config.model}")
    while True:
        done, _ = await asyncio.wait({pulling}, timeout=SIGN_S)
        if done:
            pulling.result()
            yield _line("success")
            return
        yield _line(f"pulling {entry.config.model}")


def _line(status: str) -> bytes:
    return msgspec.json.encode(PullLine(status)) + b"\n"


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

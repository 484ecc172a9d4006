"""Bodies of requests about models, and waiting for what they ask for."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder
from penstock.server.kserve.models import RepositoryChange
from penstock.server.kserve.reading import read_tensors
from penstock.server.models.front import model_failure
from penstock.server.options import ServerOptions
from penstock.server.sse import ClientGone, unless_ended

Body = TypeVar("Body", bound=msgspec.Struct)
T = TypeVar("T")

MAX_BODY_BYTES = 64 << 10


class NamedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that names a model and nothing else."""

    model: str


class BodyReader:
    """Reads small bodies. Its methods raise ApiError."""

    def __init__(self, options: ServerOptions) -> None:
        self._bodies = Bodies(MAX_BODY_BYTES, options.body_timeout_s)
        self._changes = BodyDecoder(RepositoryChange)
        self._named = BodyDecoder(NamedModel)

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """A body that may be left out."""
        if not _has_body(request):
            return kind()
        return (await self._bodies.decoded(request, BodyDecoder(kind), read_tensors)).request

    async def change(self, request: Request) -> RepositoryChange:
        if not _has_body(request):
            return RepositoryChange()
        return (await self._bodies.decoded(request, self._changes, read_tensors)).request

    async def named(self, request: Request) -> NamedModel:
        return (await self._bodies.decoded(request, self._named)).request

    async def awaited(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What comes of ``work``, unless the client leaves or the server ends; it goes on then."""
        try:
            return await unless_ended(request, request.receive, work)
        except ClientGone:
            raise
        except Exception as error:
            raise model_failure(error) from None


def _has_body(request: Request) -> bool:
    headers = request.headers
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

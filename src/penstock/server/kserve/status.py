"""What this dialect tells of a server and its models, of which there may be one or several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.engine_totals import Told
from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.kserve.models import (
    EXTENSIONS,
    ModelReady,
    ModelStatistics,
    RepositoryModel,
    RepositoryQuery,
    ServerLive,
    ServerMetadata,
    ServerReady,
    StatisticsOfModels,
    metadata_of,
    statistics,
)
from penstock.server.metrics import Counts
from penstock.version import __version__


@dataclass(frozen=True)
class ShownModel:
    """A model, at one moment."""

    name: str
    """The name, with its version where it has several."""
    entry: RepositoryModel
    trouble: str | None
    """Why it cannot be asked now."""
    counts: Counts
    engine: Told | None
    """What runs it, where it is loaded."""


class ShownModels(Protocol):
    """The models of a server."""

    @property
    def trouble(self) -> str | None:
        """Why no request would be served now."""
        ...

    def shown(self) -> Sequence[ShownModel]:
        """All of them."""
        ...

    def shown_at(self, request: Request) -> ShownModel:
        """The one that a path names. Raises ApiError."""
        ...


class KServeStatus:
    """The handlers of what needs no engine; ``query`` reads the body of a request for the index."""

    def __init__(
        self, models: ShownModels, query: Callable[[Request], Awaitable[RepositoryQuery]]
    ) -> None:
        self._models = models
        self._query = query

    async def kserve_server(self, request: Request) -> Response:
        return _json(ServerMetadata("penstock", __version__, EXTENSIONS))

    async def kserve_live(self, request: Request) -> Response:
        return _json(ServerLive())

    async def kserve_ready(self, request: Request) -> Response:
        _check(self._models.trouble)
        return _json(ServerReady())

    async def kserve_model(self, request: Request) -> Response:
        """The tensors, which are those of all models, so that none is loaded for it."""
        return _json(metadata_of(self._models.shown_at(request).name))

    async def kserve_model_ready(self, request: Request) -> Response:
        model = self._models.shown_at(request)
        _check(model.trouble)
        return _json(ModelReady(model.entry.name))

    async def kserve_model_stats(self, request: Request) -> Response:
        return _json(StatisticsOfModels([await _statistics(self._models.shown_at(request))]))

    async def kserve_stats(self, request: Request) -> Response:
        told = await asyncio.gather(*map(_statistics, self._models.shown()))
        return _json(StatisticsOfModels(list(told)))

    async def kserve_index(self, request: Request) -> Response:
        query = await self._query(request)
        entries = (model.entry for model in self._models.shown())
        return _json([each for each in entries if each.state == "READY" or not query.ready])


async def _statistics(model: ShownModel) -> ModelStatistics:
    """What the server has counted, and its engines have done; of one that does not tell in time,
    what it has told before."""
    totals = model.counts.engines
    if model.engine is not None:
        await totals.ask(model.engine)
    steps = 0 if totals.known is None else totals.known.steps
    return statistics(model.name, model.counts, steps)


def _check(trouble: str | None) -> None:
    if trouble is not None:
        raise unavailable(trouble, "not_ready", RETRY_AFTER_S)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

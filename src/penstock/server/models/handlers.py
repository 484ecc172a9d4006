"""The handlers of what a server of several models answers itself, whichever are loaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.repository.repository import Repository
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.kserve.models import RepositoryModel, RepositoryQuery
from penstock.server.kserve.status import KServeStatus, ShownModel
from penstock.server.metric_families import MetricFamilies
from penstock.server.metrics import CONTENT_TYPE, Counts, ModelMetrics, ServerState, exposition
from penstock.server.models.front import ModelsFront
from penstock.server.models.lists import (
    Status,
    cards,
    indexed,
    load_state,
    local,
    running,
)
from penstock.server.models.metrics import AllModels
from penstock.server.models.named import Asked, model_path
from penstock.server.models.reading import BodyReader
from penstock.server.models.served import ModelOptions, ServedModel
from penstock.server.ollama.handlers import VERSION as OLLAMA_VERSION
from penstock.server.ollama.models import LoadedModels, LocalModels, OllamaVersion
from penstock.server.status_structs import Alive, Version
from penstock.server.supervisor import Supervisor
from penstock.version import __version__


class ModelsReady(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /ready``."""

    status: Literal["ready"] = "ready"
    models: dict[str, str]
    """What each model does: its state, and how far its loading is."""


class ModelSwitched(msgspec.Struct, frozen=True):
    """The answer of ``POST /models/load`` and of ``/models/unload``."""

    success: bool


class ModelsHandlers:
    """The handlers, over a repository."""

    def __init__(
        self, repository: Repository[ServedModel], front: ModelsFront, options: ModelOptions
    ) -> None:
        self._repository = repository
        self._front = front
        self._options = options
        self._requests = options.requests
        self._bodies = BodyReader(options.server)
        self._created = time.time()
        self.kserve = KServeStatus(self, self._query)

    # OpenAI's

    async def models(self, request: Request) -> Response:
        found = [card for each in self._repository.statuses() for card in self._cards(each)]
        return _json({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        own, *adapters = self._cards(self._status(asked))
        return _json(next((each for each in adapters if each["id"] == asked), own))

    # Monitors

    async def health(self, request: Request) -> Response:
        return _json(Alive())

    async def version(self, request: Request) -> Response:
        return _json(Version(__version__))

    async def ready(self, request: Request) -> Response:
        """Whether a request that came now would be served, at once or when its model is loaded.
        Until those are there that are loaded at the start, the server is not ready."""
        if self.trouble is not None:
            raise unavailable(self.trouble, "not_ready", RETRY_AFTER_S)
        return _json(ModelsReady(models=self._states()))

    async def metrics_text(self, request: Request) -> Response:
        repository, counts = self._repository, self._options.counts
        statuses = repository.statuses()
        known = [status for status in statuses if status.model or status.entry.name in counts]
        states = await asyncio.gather(*map(self._state, known))
        server = self._options.server
        has_slo, names = bool(server.slo), server.metric_names
        collectors = [
            ModelMetrics(MetricFamilies(name, names), counts[name], state, has_slo)
            for name, state in zip((each.entry.name for each in known), states, strict=True)
        ]
        everything = AllModels(collectors, statuses, repository.budget, repository.held_bytes)
        return Response(exposition(everything), media_type=CONTENT_TYPE)

    # Ollama's

    async def tags(self, request: Request) -> Response:
        models = [local(status, self._created) for status in self._repository.statuses()]
        return _json(LocalModels(models))

    async def ps(self, request: Request) -> Response:
        now = time.time()
        found = (running(status, now) for status in self._repository.statuses())
        return _json(LoadedModels([each for each in found if each is not None]))

    async def ollama_version(self, request: Request) -> Response:
        return _json(OllamaVersion(OLLAMA_VERSION))

    # KServe's

    def shown(self) -> list[ShownModel]:
        return list(map(self._shown, self._repository.statuses()))

    def shown_at(self, request: Request) -> ShownModel:
        asked = model_path(request.url.path)
        assert asked is not None
        return self._shown(self._repository.status(self._front.entry(asked).name))

    def _shown(self, status: Status) -> ShownModel:
        name, model = status.entry.name, status.model
        return ShownModel(
            name,
            indexed(status),
            None if status.state == "ready" else _told(status),
            self._options.counts.get(name) or Counts(),
            None if model is None else model.supervisor,
        )

    async def _query(self, request: Request) -> RepositoryQuery:
        return await self._bodies.read(request, RepositoryQuery)

    async def kserve_load(self, request: Request) -> Response:
        change = await self._bodies.change(request)
        if change.parameters:
            raise ApiError(
                400,
                "parameters: a model is loaded as the catalogue says; change it there, and have it "
                "read again (POST /admin/models/reload)",
                param="parameters",
            )
        return _json(await self._loaded(request.path_params["model"], request))

    async def kserve_unload(self, request: Request) -> Response:
        change = await self._bodies.change(request)
        if set(change.parameters) - {"unload_dependents"}:
            raise ApiError(400, "parameters: there is unload_dependents alone", param="parameters")
        return _json(await self._unloaded(request.path_params["model"], request))

    # Those of llama-server's router

    async def load(self, request: Request) -> Response:
        body = await self._bodies.named(request)
        await self._loaded(body.model, request)
        return _json(ModelSwitched(True))

    async def unload(self, request: Request) -> Response:
        body = await self._bodies.named(request)
        await self._unloaded(body.model, request)
        return _json(ModelSwitched(True))

    # Private

    def engines(self) -> Iterable[Supervisor]:
        """The engines of all models that are loaded."""
        models = (status.model for status in self._repository.statuses())
        return [model.supervisor for model in models if model is not None]

    async def _loaded(self, asked: str, request: Request) -> RepositoryModel:
        entry = self._front.entry(Asked(asked))
        await self._bodies.awaited(request, self._repository.load(entry.name))
        return indexed(self._repository.status(entry.name))

    async def _unloaded(self, asked: str, request: Request) -> RepositoryModel:
        entry = self._front.entry(Asked(asked))
        await self._bodies.awaited(request, self._repository.unload(entry.name))
        return indexed(self._repository.status(entry.name))

    def _status(self, asked: str) -> Status:
        return self._repository.status(self._front.entry(Asked(asked)).name)

    async def _state(self, status: Status) -> ServerState:
        """What the metrics of a model say of it, where it is loaded and where it was."""
        if status.model is not None:
            return await status.model.handlers.state()
        state = ServerState.at_rest(self._options.counts[status.entry.name])
        state.server_restarts = self._options.server.restarts
        state.open_requests = len(self._requests)
        state.dropped_log_lines = self._options.dropped_log_lines()
        return state

    def _cards(self, status: Status) -> list[dict[str, Any]]:
        late = self._options.adapters.of(status.entry.name)
        return cards(status, int(self._created), late)

    def _states(self) -> dict[str, str]:
        return {status.entry.name: _doing(status) for status in self._repository.statuses()}

    @property
    def trouble(self) -> str | None:
        """Why a request that came now would not be served."""
        if self._requests.draining is not None:
            return self._requests.draining
        coming = [
            _told(status)
            for status in self._repository.statuses()
            if status.entry.at_start and not status.loads and load_state(status).value == "loading"
        ]
        return "; ".join(coming) or None


def _doing(status: Status) -> str:
    return f"{status.state}: {status.phase}" if status.phase else status.state


def _told(status: Status) -> str:
    if status.state == "failed":
        return status.failure or f"the model {status.entry.name!r} could not be loaded"
    return f"the model {status.entry.name!r} is {_doing(status)}"


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

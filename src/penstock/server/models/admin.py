"""The administrator's endpoints of a server of several models."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError
from penstock.repository.catalogue import Catalogue
from penstock.repository.repository import Repository
from penstock.server.admin import RequestStatus, ServerAdmin, ServerStatus, endpoint
from penstock.server.errors import ApiError
from penstock.server.models.handlers import ModelsHandlers
from penstock.server.models.lists import Status, load_state
from penstock.server.models.served import ModelOptions, ServedModel
from penstock.server.openapi import Endpoint

_log = logging.getLogger("penstock.models")

ReadCatalogue = Callable[[], Catalogue]
"""Reads the catalogue again. Raises ConfigError."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model, for its administrator."""

    name: str
    aliases: list[str]
    source: str
    """The folder, file or hub id that it is of."""
    state: str
    phase: str
    failure: str | None
    memory_bytes: int | None
    """What it needs; null before that was found out."""
    open: int
    waiting: int
    idle_s: float
    loads: int
    unloads: int
    failed_loads: int
    pid: int | None
    """The process of its engine, where it is loaded."""
    trouble: str | None
    """Why its engine cannot serve now."""


class ModelsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /admin/status`` and of ``GET /admin/models``."""

    server: ServerStatus
    memory_budget_bytes: int
    memory_bytes: int
    models: list[ModelState]
    draining: str | None
    requests: list[RequestStatus]


class Reloaded(msgspec.Struct, frozen=True):
    """The answer of ``POST /admin/models/reload``."""

    changed: list[str]
    """Models that came, changed or went."""


class Reloader:
    """Reads the catalogue again and puts it in force, for the administrator and for SIGHUP."""

    def __init__(self, repository: Repository[ServedModel], read: ReadCatalogue) -> None:
        self._repository = repository
        self._read = read

    async def reload(self) -> list[str]:
        """Returns the names of models that came, changed or went. Raises ConfigError, and then
        nothing has changed."""
        catalogue = await asyncio.to_thread(self._read)
        changed = self._repository.reload(catalogue)
        _log.warning("the catalogue was read again: %s", ", ".join(changed) or "nothing changed")
        return changed

    async def on_signal(self) -> None:
        """Reload where nobody can be told of an error but the log."""
        try:
            await self.reload()
        except ConfigError as error:
            _log.error("the catalogue stays as it was: %s", error)


class ModelsAdmin(ServerAdmin):
    """The handlers. Access is checked before they are called."""

    def __init__(
        self,
        repository: Repository[ServedModel],
        handlers: ModelsHandlers,
        options: ModelOptions,
        reloader: Reloader,
    ) -> None:
        super().__init__(handlers.engines, options.requests, options.server)
        self._repository = repository
        self._handlers = handlers
        self._reloader = reloader

    def endpoints(self) -> list[Endpoint]:
        return [
            endpoint("GET", "status", self.status, ModelsStatus),
            endpoint("GET", "models", self.models, ModelsStatus),
            endpoint("POST", "models/reload", self.reload, Reloaded),
            *super().endpoints(),
        ]

    async def status(self, request: Request) -> Response:
        """The processes, the models and the requests that are open."""
        repository = self._repository
        return _json(
            ModelsStatus(
                server=ServerStatus(pid=os.getpid(), restarts=self._options.restarts),
                memory_budget_bytes=repository.budget,
                memory_bytes=repository.held_bytes,
                models=[_state(status) for status in repository.statuses()],
                draining=self._requests.draining,
                requests=self.open_requests(),
            )
        )

    async def models(self, request: Request) -> Response:
        """The same."""
        return await self.status(request)

    async def reload(self, request: Request) -> Response:
        """Read the catalogue again: what did not change stays loaded."""
        if self._requests.stopping:
            raise ApiError(409, "the server is shutting down", code="shutting_down")
        try:
            changed = await self._reloader.reload()
        except ConfigError as error:
            raise ApiError(400, f"{error}; the catalogue stays as it was") from None
        return _json(Reloaded(changed))


def _state(status: Status) -> ModelState:
    model, entry = status.model, status.entry
    return ModelState(
        name=entry.name,
        aliases=list(entry.aliases),
        source=entry.config.model,
        state=status.state,
        phase=status.phase,
        failure=load_state(status).failure,
        memory_bytes=status.need,
        open=status.open,
        waiting=status.waiting,
        idle_s=status.idle_s,
        loads=status.loads,
        unloads=status.unloads,
        failed_loads=status.failed_loads,
        pid=None if model is None else model.pid,
        trouble=None if model is None else model.supervisor.trouble,
    )


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

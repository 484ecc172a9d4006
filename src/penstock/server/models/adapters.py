"""Adapters that are loaded and unloaded while a server of several models runs."""

from __future__ import annotations

import contextlib

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import EngineDeadError
from penstock.repository.repository import Repository
from penstock.server.adapters import AdapterBodies, no_adapter
from penstock.server.errors import ApiError
from penstock.server.models.front import ModelsFront
from penstock.server.models.late_adapters import LateAdapter, LateAdapters
from penstock.server.models.named import Asked
from penstock.server.models.reading import BodyReader
from penstock.server.models.served import ServedModel
from penstock.server.options import ServerOptions


class ModelAdapterHandlers:
    """The handlers of the administrator that load and unload adapters."""

    def __init__(
        self,
        repository: Repository[ServedModel],
        front: ModelsFront,
        late: LateAdapters,
        options: ServerOptions,
    ) -> None:
        self._repository = repository
        self._front = front
        self._late = late
        self._bodies = BodyReader(options)
        self._adapters = AdapterBodies(options)

    async def load(self, request: Request) -> Response:
        """Load an adapter for a model, which is loaded where it is not."""
        body = await self._adapters.to_load(request)
        entry, name = self._front.entry(Asked(body.model)), body.lora_name
        catalogue, known = self._repository.catalogue, self._late.find(name)
        owner = catalogue.find(name) or catalogue.adapted(name)
        if owner is not None or (known is not None and known.model != entry.name):
            of = known.model if owner is None and known is not None else "the catalogue"
            raise ApiError(
                400, f"{name!r} is a name of {of} already; take another", param="lora_name"
            )
        lease = await self._bodies.awaited(request, self._repository.enter(entry.name))
        try:
            answer = await lease.model.handlers.adapters.loaded(body)
            self._late.keep(LateAdapter(name, entry.name, body.lora_path))
        finally:
            lease.close()
        return answer

    async def unload(self, request: Request) -> Response:
        """Forget an adapter; requests that use it go on."""
        name = (await self._adapters.to_unload(request)).lora_name
        known = self._late.find(name)
        if known is None:
            owner = self._repository.catalogue.adapted(name)
            if owner is None:
                raise no_adapter(name)
            raise ApiError(
                400,
                f"the adapter {name!r} is the catalogue's: take it out of the entry of "
                f"{owner.name!r}, and have it read again (POST /admin/models/reload)",
                param="lora_name",
            )
        self._late.forget(name)
        statuses = self._repository.statuses()
        model = next((each.model for each in statuses if each.entry.name == known.model), None)
        if model is not None:
            with contextlib.suppress(EngineDeadError):  # the next one does not get it
                await model.handlers.adapters.unloaded(name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

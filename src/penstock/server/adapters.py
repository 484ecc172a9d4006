"""Adapters over HTTP: what a request's model names, and loading and unloading as vLLM has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError, WeightError
from penstock.frontend.adapters import ServedAdapter
from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import ApiError, model_not_found
from penstock.server.openapi import Endpoint
from penstock.server.options import ServerOptions
from penstock.server.small_body import small_body
from penstock.server.status_structs import ModelCard
from penstock.server.supervisor import Supervisor

LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"
_MAX_BODY_BYTES: Final = 16_384

_log = logging.getLogger("penstock.adapters")


class LoadAdapterBody(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter to serve; ``load_inplace`` in the place of one of the same name."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    lora_int_id: int | None = None
    """Read by nobody: an adapter is known by its name."""
    model: str | None = None
    """The model that it belongs to, where a server has several."""


class UnloadAdapterBody(msgspec.Struct, forbid_unknown_fields=True):
    lora_name: str
    lora_int_id: int | None = None


class AdapterNames:
    """What a request may have as its model: a name of the model itself, or that of an adapter."""

    def __init__(self, engine: Supervisor, aliases: Collection[str] = ()) -> None:
        self._engine = engine
        self._model = engine.model.served_model_name  # no profile changes it
        self._of_model = frozenset((self._model, *aliases))

    def digest(self, asked: str) -> str:
        """The digest of the adapter that is asked for; empty for the model itself. Raises
        ApiError."""
        if asked in self._of_model:
            return ""
        found = self._engine.adapters.find(asked)
        if found is None:
            raise model_not_found(asked, self._model)
        return found.digest


class AdapterBodies:
    """Reads what an administrator asks. Its methods raise ApiError."""

    def __init__(self, options: ServerOptions) -> None:
        self._seconds = options.body_timeout_s
        self._loads = BodyDecoder(LoadAdapterBody)
        self._unloads = BodyDecoder(UnloadAdapterBody)

    async def to_load(self, request: Request) -> LoadAdapterBody:
        body = await small_body(request, self._loads, _MAX_BODY_BYTES, self._seconds)
        if not body.lora_name or not body.lora_path:
            raise ApiError(400, "lora_name and lora_path must not be empty", param="lora_name")
        return body

    async def to_unload(self, request: Request) -> UnloadAdapterBody:
        return await small_body(request, self._unloads, _MAX_BODY_BYTES, self._seconds)


class AdapterHandlers:
    """The handlers of the administrator that load and unload adapters."""

    def __init__(self, engine: Supervisor, options: ServerOptions) -> None:
        self._engine = engine
        self._bodies = AdapterBodies(options)
        self._created: dict[str, int] = {}

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                *("POST", LOAD, self.load, "Serve a LoRA adapter beside the model.", None),
                LoadAdapterBody,
                access="admin",
            ),
            Endpoint(
                *("POST", UNLOAD, self.unload, "Serve an adapter no longer.", None),
                UnloadAdapterBody,
                access="admin",
            ),
        ]

    def cards(self, of_model: ModelCard) -> list[ModelCard]:
        """The entries of the model and of its adapters."""
        return [of_model, *(self._card(each, of_model) for each in self._engine.adapters)]

    def card(self, name: str, of_model: ModelCard) -> ModelCard:
        """The entry of what requests name so. Raises ApiError."""
        if name == of_model.id:
            return of_model
        found = self._engine.adapters.find(name)
        if found is None:
            raise model_not_found(name, of_model.id)
        return self._card(found, of_model)

    async def load(self, request: Request) -> Response:
        """Load an adapter from a folder of the server's machine; requests name it as their
        model."""
        body = await self._bodies.to_load(request)
        own = self._engine.model.served_model_name
        if body.model not in (None, own):
            raise model_not_found(body.model or "", own)
        return await self.loaded(body)

    async def loaded(self, body: LoadAdapterBody) -> Response:
        """The answer once an adapter of the model is loaded. Raises ApiError."""
        name, adapters = body.lora_name, self._engine.adapters
        if name == self._engine.model.served_model_name:
            raise ApiError(400, f"{name!r} is the model's own name", param="lora_name")
        if adapters.find(name) is not None and not body.load_inplace:
            raise ApiError(
                400,
                f"the adapter {name!r} is loaded already; unload it first, or set load_inplace",
                param="lora_name",
            )
        try:
            await adapters.load(self._engine.llm, name, body.lora_path)
        except (ConfigError, WeightError) as error:
            raise ApiError(400, str(error), param="lora_path") from None
        self._created[name] = int(time.time())
        _log.warning("the adapter %r is served, from %s", name, body.lora_path)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """Forget an adapter; requests that use it go on."""
        return await self.unloaded((await self._bodies.to_unload(request)).lora_name)

    async def unloaded(self, name: str) -> Response:
        """The answer once an adapter of the model is forgotten. Raises ApiError."""
        if self._engine.adapters.find(name) is None:
            raise no_adapter(name)
        await self._engine.adapters.unload(self._engine.llm, name)
        self._created.pop(name, None)
        _log.warning("the adapter %r is not served any more", name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    def _card(self, adapter: ServedAdapter, of_model: ModelCard) -> ModelCard:
        changes: Mapping[str, object] = {
            "id": adapter.name,
            "created": self._created.get(adapter.name, of_model.created),
            "root": adapter.path,
            "parent": of_model.id,
        }
        return msgspec.structs.replace(of_model, **changes)


def no_adapter(name: str) -> ApiError:
    return ApiError(
        404,
        f"no adapter is called {name!r}",
        type="not_found_error",
        param="lora_name",
        code="model_not_found",
    )

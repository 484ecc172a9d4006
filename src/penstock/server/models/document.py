"""The OpenAPI document of a server of several models: that of one of them, in which what the
repository answers itself stands in the place of what the model alone would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.admin import ServerAdmin
from penstock.server.keys import Keys
from penstock.server.llama import paths as llama
from penstock.server.models.front import ModelsFront
from penstock.server.models.handlers import ModelsHandlers, ModelsReady, ModelSwitched
from penstock.server.models.lists import LoadState
from penstock.server.models.named import query_model
from penstock.server.models.reading import NamedModel
from penstock.server.openapi import Endpoint, Schema, document
from penstock.version import __version__


class RepositoryCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /v1/models``. Of a model that is loaded there is all besides that a server
    of it alone tells."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: LoadState
    aliases: list[str] = []
    parent: str | None = None
    """The model of an adapter, which has no aliases."""
    root: str | None = None
    """The folder of an adapter."""


class RepositoryCards(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /v1/models``."""

    object: Literal["list"]
    data: list[RepositoryCard]


class ModelsDocument:
    """Answers with the document, for the model that the query names, or that was used last; where
    that is not loaded, with the repository's own part."""

    def __init__(
        self, front: ModelsFront, handlers: ModelsHandlers, admin: ServerAdmin, keys: Keys
    ) -> None:
        self._front = front
        # What has a body is as a server of one model has it.
        own = [*_endpoints(handlers), *(each for each in admin.endpoints() if each.body is None)]
        self._own = document(own, __version__, bool(keys.users), keys.any, _as_it_is)

    async def openapi_json(self, request: Request) -> Response:
        """Raises ApiError where the query names a model that there is not."""
        model = self._front.observed(query_model(request.scope))
        told = self._own
        if model is not None:
            told = merged(msgspec.json.decode(model.handlers.document()), self._own)
        return Response(msgspec.json.encode(told), media_type="application/json")


def merged(model: Schema, own: Schema) -> Schema:
    """A model's document with the operations and schemas of ``own``."""
    paths = dict(model["paths"])
    for path, methods in own["paths"].items():
        paths[path] = {**paths.get(path, {}), **methods}
    parts: dict[str, Any] = model["components"]
    schemas = {**parts["schemas"], **own["components"]["schemas"]}
    return {**model, "paths": paths, "components": {**parts, "schemas": schemas}}


def _endpoints(of: ModelsHandlers) -> Sequence[Endpoint]:
    """Those whose answers are not a model's own."""
    cards = ("GET", "/v1/models", of.models, "The models, loaded or not.", RepositoryCards)
    card = ("GET", "/v1/models/{model:path}", of.model, "One of them by name.", RepositoryCard)
    load = ("POST", llama.LOAD, of.load, "Load a model.", ModelSwitched, NamedModel)
    unload = ("POST", llama.UNLOAD, of.unload, "Unload a model.", ModelSwitched, NamedModel)
    listed = ("GET", llama.MODELS, of.models, "The same as /v1/models.", RepositoryCards)
    ready = ("GET", "/ready", of.ready, "Whether it serves, and what models do.", ModelsReady)
    every = [Endpoint(*each) for each in (cards, card, load, unload, listed)]
    return [*every, Endpoint(*ready, access="public")]


def _as_it_is(components: Any, taken: Any) -> None:
    """Bodies of these are what their structs say."""

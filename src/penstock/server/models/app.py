"""The HTTP application of a server of several models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from penstock.repository.repository import Repository
from penstock.server import adapters
from penstock.server.bodies import Bodies
from penstock.server.error_forms import error_form
from penstock.server.gate import Gate
from penstock.server.http_app import answered, cors, http_errors
from penstock.server.keys import KeyCheck
from penstock.server.kserve import paths as kserve
from penstock.server.llama import paths as llama
from penstock.server.models.adapters import ModelAdapterHandlers
from penstock.server.models.admin import ModelsAdmin, Reloader
from penstock.server.models.document import ModelsDocument
from penstock.server.models.front import ModelsFront
from penstock.server.models.handlers import ModelsHandlers
from penstock.server.models.pulling import DELETE, PULL, PullHandlers
from penstock.server.models.served import ModelOptions, ServedModel
from penstock.server.openai.batches.asking import AsOwner, OwnEndpoints
from penstock.server.sites import SiteCheck
from penstock.server.sse import EventStream

if TYPE_CHECKING:
    from penstock.server.tracing import Tracing

_TRACED_AS: Final = "repository"
"""What traces say of the model where they tell of the whole request."""

_BATCHED_AT_ONCE: Final = 32
"""Requests of batches that are open together: half of what an engine of a CPU runs in a step."""

_Handler = Callable[[Request], Awaitable[Response | EventStream]]


def build_models_app(
    repository: Repository[ServedModel],
    options: ModelOptions,
    reloader: Reloader,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """Build the application that serves the models of ``repository``, and have the batches that are
    kept go on. It closes neither."""
    server, requests = options.server, options.requests
    front = ModelsFront(repository, requests, server, options.adapters)
    handlers = ModelsHandlers(repository, front, options)
    admin = ModelsAdmin(repository, handlers, options, reloader)
    told = ModelsDocument(front, handlers, admin, server.keys)
    bodies = Bodies(server.max_body_bytes, server.body_timeout_s)
    keys_needed = bool(server.keys.users)
    middleware = [
        Middleware(Gate, requests=requests, tracing=tracing, model=_TRACED_AS),
        Middleware(
            SiteCheck, hosts=server.hosts, origins=server.cors_origins, keys_needed=keys_needed
        ),
        *cors(server.cors_origins),
        Middleware(KeyCheck, keys=server.keys),
    ]
    routes: list[Route | Mount] = [Route(f"{kserve.MODEL}/config", front)]
    routes.append(Route("/openapi.json", answered(told.openapi_json), methods=["GET"]))
    routes += [
        Route(path, answered(handler, error_form(path).body), methods=[method])
        for method, path, handler in _own(
            handlers,
            PullHandlers(repository, front, server),
            ModelAdapterHandlers(repository, front, options.adapters, server),
        )
    ]
    routes += [
        Route(each.path, answered(each.handler, each.error_body), methods=[each.method])
        for each in (*admin.endpoints(), *options.kept.endpoints(bodies))
    ]
    asked = Gate(AsOwner(front), requests, tracing, _TRACED_AS)
    options.kept.batches.start(OwnEndpoints(asked), _BATCHED_AT_ONCE)
    routes.append(Mount("", app=front))
    return Starlette(middleware=middleware, routes=routes, exception_handlers=http_errors())


def _own(
    of: ModelsHandlers, files: PullHandlers, late: ModelAdapterHandlers
) -> list[tuple[str, str, _Handler]]:
    """What is answered without a model's own application: method, path and handler."""
    model = kserve.MODEL
    return [
        ("GET", "/v1/models", of.models),
        ("GET", "/v1/models/{model:path}", of.model),
        ("GET", "/health", of.health),
        ("GET", "/ready", of.ready),
        ("GET", "/metrics", of.metrics_text),
        ("GET", "/version", of.version),
        ("GET", "/api/tags", of.tags),
        ("GET", "/api/ps", of.ps),
        ("GET", "/api/version", of.ollama_version),
        ("POST", PULL, files.pull),
        ("DELETE", DELETE, files.delete),
        ("GET", "/v2", of.kserve.kserve_server),
        ("GET", "/v2/health/live", of.kserve.kserve_live),
        ("GET", "/v2/health/ready", of.kserve.kserve_ready),
        ("GET", "/v2/models/stats", of.kserve.kserve_stats),
        ("GET", f"{model}/ready", of.kserve.kserve_model_ready),
        ("GET", f"{model}/stats", of.kserve.kserve_model_stats),
        ("GET", model, of.kserve.kserve_model),
        ("POST", kserve.INDEX, of.kserve.kserve_index),
        ("POST", kserve.LOAD, of.kserve_load),
        ("POST", kserve.UNLOAD, of.kserve_unload),
        ("GET", llama.MODELS, of.models),
        ("POST", llama.LOAD, of.load),
        ("POST", llama.UNLOAD, of.unload),
        ("POST", adapters.LOAD, late.load),
        ("POST", adapters.UNLOAD, late.unload),
    ]

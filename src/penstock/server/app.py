"""The HTTP application: routes, and what every route has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from penstock.engine.ipc.wire import ModelFacts
from penstock.server.admin import Admin
from penstock.server.cache_events import CacheEvents
from penstock.server.gate import Gate
from penstock.server.handlers import Handlers
from penstock.server.http_app import answered, cors, http_errors
from penstock.server.kept import Kept
from penstock.server.keys import KeyCheck, Keys
from penstock.server.of_model import OfModel
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.batches.asking import AsOwner, OwnEndpoints
from penstock.server.openai.document import describe_bodies
from penstock.server.openapi import Endpoint, document
from penstock.server.options import ServerOptions
from penstock.server.page.bundle import Bundle
from penstock.server.routes import endpoints as route_table
from penstock.server.sites import SiteCheck
from penstock.server.supervisor import Supervisor
from penstock.server.switch import Switch
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.server.tracing import Tracing


def build_app(
    engine: Supervisor,
    requests: OpenRequests,
    options: ServerOptions,
    switch: Switch,
    dropped_log_lines: Callable[[], int] = lambda: 0,
    tracing: Tracing | None = None,
    kept: Kept | None = None,
) -> ASGIApp:
    """Build the application that serves ``engine``, and have the batches that are ``kept`` go on.
    It closes none of them, nor ``tracing``."""
    handlers = Handlers(engine, requests, options, dropped_log_lines, kept=kept)
    admin = Admin(engine, requests, options, switch)
    gate = Middleware(
        Gate, requests=requests, tracing=tracing, model=engine.model.served_model_name
    )
    keys_needed = bool(options.keys.users)
    sites = Middleware(
        SiteCheck, hosts=options.hosts, origins=options.cors_origins, keys_needed=keys_needed
    )
    middleware = [gate, sites, *cors(options.cors_origins)]
    page = Bundle.read() if options.page else None
    open_paths = () if page is None else page.paths
    middleware.append(Middleware(KeyCheck, keys=options.keys, open_paths=open_paths))
    cache = (
        CacheEvents(engine, requests).endpoint(),
        handlers.prompt_keys.endpoint(),
        *handlers.prefixes.endpoints(),
    )
    endpoints = [*route_table(handlers), *admin.endpoints(), *handlers.adapters.endpoints(), *cache]
    routes = [
        Route(e.path, answered(e.handler, e.error_body), methods=[e.method]) for e in endpoints
    ]
    own = Gate(AsOwner(Router(routes[:])), requests, tracing, engine.model.served_model_name)
    running = engine.max_sequences - engine.setup.max_waiting
    handlers.kept.batches.start(OwnEndpoints(own), max(running // 2, 1))
    if page is not None:
        routes += [Route(path, page.answer, methods=["GET"]) for path in page.paths]

    handlers.document = documented(engine, endpoints, options.keys)
    return Starlette(
        middleware=middleware,
        routes=routes,
        exception_handlers=http_errors(),
    )


def documented(
    engine: Supervisor, endpoints: Sequence[Endpoint], keys: Keys
) -> Callable[[], bytes]:
    """The OpenAPI document of these endpoints, as it is for the engine's model now."""

    def described(model: ModelFacts) -> bytes:
        return msgspec.json.encode(
            document(
                endpoints,
                __version__,
                bool(keys.users),
                keys.any,
                lambda components, taken: describe_bodies(
                    endpoints, components, taken, model, keys.best_of_all
                ),
            )
        )

    return OfModel(engine, described).get

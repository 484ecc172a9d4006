"""The router's HTTP application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.router.asked import Asked, Body
from penstock.router.fleet import Fleet
from penstock.router.fleet_page import PAGE, fleet_page
from penstock.router.fleet_status import fleet_status
from penstock.router.headers import came_by, via
from penstock.router.lists import LISTINGS, Listing, listed
from penstock.router.metrics import render
from penstock.router.paths import CHANGES, JSON_PATHS, PASSED_ON, model_asked, names_meant
from penstock.router.prompts import Prompts
from penstock.router.relay import Relay
from penstock.server.body_memory import BODIES_BYTES, BodyMemory, Share
from penstock.server.error_forms import error_form
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.gate import Gate
from penstock.server.http_app import answered, cors, http_errors
from penstock.server.metrics import CONTENT_TYPE
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.read_body import Reader, read_any_body, read_body
from penstock.server.sites import SiteCheck

SESSION: Final = "x-session-id"
_METHODS: Final = ("GET", "POST", "DELETE")
_THERE_IS: Final = (
    "; the router passes on requests for answers in every dialect (/v1/..., /api/..., /v2/..., "
    "/completion, /generate and others), and has /health, /ready, /metrics and /fleet"
)


class Handlers:
    """The handlers of all routes."""

    def __init__(self, fleet: Fleet, requests: OpenRequests) -> None:
        self._fleet = fleet
        self._requests = requests
        self._prompts = Prompts(fleet)
        self._memory = BodyMemory(max(BODIES_BYTES, fleet.options.max_body_bytes))

    async def relay(self, request: Request) -> Relay:
        """Pass a request on to a replica, and its answer back."""
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "draining", RETRY_AFTER_S)
        opened = OpenRequest.of(request.scope)
        self._check_loop(request)
        self._requests.begin_work(opened, request.headers.get(TIMEOUT))
        path = request.scope["path"]
        if not {".", ".."}.isdisjoint(path.split("/")):
            raise ApiError(400, f"the path {path} has segments of dots; write where it leads to")
        share = self._memory.share()
        opened.on_leave = share.give_back  # a body is kept until its request is answered
        read = read_body if path in JSON_PATHS else read_any_body
        data = await self._read(request, read, share)
        body = Body.of(data) if data.lstrip().startswith(b"{") else None
        model = model_asked(path, request.scope["query_string"], body)
        session = None if body is None else body.session
        asked = Asked(
            method="GET" if request.method == "HEAD" else request.method,
            path=path,
            target=_target(request),
            headers=request.scope["headers"],
            data=data,
            body=body,
            model=None if model is None else self._fleet.known_as(names_meant(path, model)),
            session=request.headers.get(SESSION) or session,
        )
        return Relay(request, asked, self._fleet, self._prompts)

    async def listed(self, listing: Listing, request: Request) -> Response:
        """What all replicas list, each entry once."""
        self._check_loop(request)
        replicas = self._fleet.of(self._fleet.ready(None))
        if not replicas:
            raise self._nobody()
        body = b""
        if listing.method == "POST":
            with self._memory.share() as share:
                body = await self._read(request, read_any_body, share)
        return await listed(listing, request, body, replicas, via(self._fleet.name))

    async def changed(self, request: Request) -> Response:
        """Refuse what changes the models of a server."""
        raise ApiError(
            400,
            f"{request.url.path} changes the models of one server, and here are several; ask each "
            "of them itself",
        )

    async def _read(self, request: Request, read: Reader, share: Share) -> bytes:
        options = self._fleet.options
        return await read(request, options.max_body_bytes, options.body_timeout_s, share)

    async def health(self, request: Request) -> Response:
        """Whether this process is alive, which the answer itself shows."""
        return _json({"status": "routing"})

    async def ready(self, request: Request) -> Response:
        """Whether a request that came now would find a replica."""
        self._check_loop(request)
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "not_ready", RETRY_AFTER_S)
        if not self._fleet.ready(None):
            raise self._nobody()
        return _json({"status": "ready"})

    async def metrics_text(self, request: Request) -> Response:
        text = render(self._fleet, self._prompts, len(self._requests))
        return Response(text, media_type=CONTENT_TYPE)

    async def status(self, request: Request) -> Response:
        """What the page of the fleet shows."""
        told = fleet_status(self._fleet, len(self._requests))
        return Response(msgspec.json.encode(told), media_type="application/json")

    def _check_loop(self, request: Request) -> None:
        if came_by(request.scope["headers"], self._fleet.name):
            raise ApiError(
                508,
                "this is the router that the request comes from; one of the servers that it is "
                "given is itself, or a router that leads back to it: take that one out",
                type="server_error",
                code="loop",
                retry=False,
            )

    def _nobody(self) -> ApiError:
        return unavailable(
            f"no replica is ready: {self._fleet.troubles}", "no_replica", RETRY_AFTER_S
        )


def build_app(fleet: Fleet, requests: OpenRequests) -> ASGIApp:
    """The application that routes to a fleet."""
    handlers, page = Handlers(fleet, requests), fleet_page()
    middleware = [
        Middleware(Gate, requests=requests, tracing=None, model=""),
        Middleware(
            SiteCheck,
            hosts=fleet.options.hosts,
            origins=fleet.options.cors_origins,
            keys_needed=False,
        ),
        *cors(fleet.options.cors_origins, _METHODS),
    ]
    routes = [
        Route("/health", answered(handlers.health), methods=["GET"]),
        Route("/ready", answered(handlers.ready), methods=["GET"]),
        Route("/metrics", answered(handlers.metrics_text), methods=["GET"]),
        Route("/", _to_page, methods=["GET"]),
        Route(f"{PAGE}/status", answered(handlers.status), methods=["GET"]),
        *(Route(path, page.answer, methods=["GET"]) for path in page.paths),
        *(
            Route(each.path, _in_form(partial(handlers.listed, each)), methods=[each.method])
            for each in LISTINGS
        ),
        *(Route(path, _in_form(handlers.changed), methods=["POST", "DELETE"]) for path in CHANGES),
        *(
            Route(path, _in_form(handlers.relay), methods=methods)
            for path, methods in PASSED_ON.items()
        ),
    ]
    app = Starlette(middleware=middleware, routes=routes, exception_handlers=http_errors(_THERE_IS))
    app.router.redirect_slashes = False  # it would send /v1 to /v1/
    return app


def _in_form(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    """``handler``, whose errors have the form of the dialect of their path."""

    async def answer(request: Request) -> Any:
        return await answered(handler, error_form(request.scope["path"]).body)(request)

    return answer


async def _to_page(request: Request) -> Response:
    return RedirectResponse(PAGE)


def _target(request: Request) -> str:
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

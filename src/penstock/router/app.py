"""The router's HTTP application."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.router.asked import Asked, Body, text_of
from penstock.router.exchange import Headers, Timeouts, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.fleet_page import PAGE, fleet_page
from penstock.router.fleet_status import fleet_status
from penstock.router.headers import came_by, via
from penstock.router.metrics import render
from penstock.router.prompts import KEYED, Prompts
from penstock.router.reading import read, said
from penstock.router.relay import Relay
from penstock.router.replica import Replica
from penstock.server.body_memory import BODIES_BYTES, BodyMemory
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.gate import Gate
from penstock.server.http_app import answered, cors, http_errors
from penstock.server.metrics import CONTENT_TYPE
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.read_body import read_any_body, read_body
from penstock.server.sites import SiteCheck
from penstock.server.sse import unless_ended

SESSION: Final = "x-session-id"
_JSON_PATHS: Final = (*KEYED, "/v1/embeddings")
_ASKED_WITH: Final = (b"authorization", b"x-api-key", b"api-key", b"via")
"""The headers with which the list of models is asked for."""
_PATIENCE: Final = Timeouts(connect=2.0, head=5.0, idle=5.0)
_MAX_LIST: Final = 4 << 20
_METHODS: Final = ("GET", "POST", "DELETE")
_THERE_IS: Final = (
    "; the router passes on /v1/..., /tokenize and /detokenize, and has /health, /ready, /metrics "
    "and /fleet"
)


class _List(msgspec.Struct):
    data: list[dict[str, Any]]


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
        options, path = self._fleet.options, request.scope["path"]
        if not {".", ".."}.isdisjoint(path.split("/")):
            raise ApiError(400, f"the path {path} has segments of dots; write where it leads to")
        share = self._memory.share()
        opened.on_leave = share.give_back  # a body is kept until its request is answered
        read = read_body if path in _JSON_PATHS else read_any_body
        data = await read(request, options.max_body_bytes, options.body_timeout_s, share)
        is_json = bool(data) and "json" in request.headers.get("content-type", "")
        body = Body.of(data) if is_json else None
        session = None if body is None else body.session
        asked = Asked(
            method="GET" if request.method == "HEAD" else request.method,
            path=path,
            target=_target(request),
            headers=request.scope["headers"],
            data=data,
            body=body,
            model=_model_in(path) if body is None else text_of(body.model),
            session=request.headers.get(SESSION) or session,
        )
        return Relay(request, asked, self._fleet, self._prompts)

    async def models(self, request: Request) -> Response:
        """The models of all replicas, each once."""
        self._check_loop(request)
        own = via(self._fleet.name)
        headers = [*((n, v) for n, v in request.scope["headers"] if n in _ASKED_WITH), own]
        replicas = self._fleet.of(self._fleet.ready(None))
        if not replicas:
            raise self._nobody()
        asking = asyncio.gather(*(_models(replica, headers) for replica in replicas))

        async def answers() -> list[tuple[int, bytes]]:
            return await asking

        found: dict[str, dict[str, Any]] = {}
        listed = False
        refusal: tuple[int, bytes] | None = None
        troubles = []
        asked = await unless_ended(request, request.receive, answers())
        for replica, (status, data) in zip(replicas, asked, strict=True):
            cards = read(data, _List) if status == 200 else None
            if cards is not None:
                listed = True
                for card in cards.data:
                    found.setdefault(str(card.get("id")), card)
            elif status in (401, 403):
                refusal = refusal or (status, data)
            else:
                troubles.append(f"{replica.url}: {_why(status, data)}")
        if not listed and refusal is not None:
            return Response(refusal[1], refusal[0], media_type="application/json")
        if not listed:
            why = f"no replica lists its models: {'; '.join(troubles)}"
            raise unavailable(why, "no_models", RETRY_AFTER_S)
        cards_of_all = [found[name] for name in sorted(found)]
        return _json({"object": "list", "data": cards_of_all})

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
        Route("/v1/models", answered(handlers.models), methods=["GET"]),
        Route("/v1/{rest:path}", answered(handlers.relay), methods=_METHODS),
        Route("/tokenize", answered(handlers.relay), methods=["POST"]),
        Route("/detokenize", answered(handlers.relay), methods=["POST"]),
    ]
    app = Starlette(middleware=middleware, routes=routes, exception_handlers=http_errors(_THERE_IS))
    app.router.redirect_slashes = False  # it would send /v1 to /v1/
    return app


def _model_in(path: str) -> str | None:
    """The model that a path of its card names."""
    before, _, name = path.partition("/v1/models/")
    return name if name and not before else None


async def _to_page(request: Request) -> Response:
    return RedirectResponse(PAGE)


def _target(request: Request) -> str:
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


async def _models(replica: Replica, headers: Headers) -> tuple[int, bytes]:
    """Status and body; status 0, and why there is none."""
    try:
        return await replica.pool.fetch("GET", "/v1/models", headers, b"", _PATIENCE, _MAX_LIST)
    except UpstreamError as error:
        return 0, str(error).encode()


def _why(status: int, data: bytes) -> str:
    """Why a replica lists no models."""
    if status == 200:
        return "what it answers is no list of models"
    return data.decode() if not status else said(data) or f"status {status}"


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

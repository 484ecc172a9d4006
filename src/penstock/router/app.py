"""The router's HTTP application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.router.exchange import Headers, Timeouts, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.metrics import render
from penstock.router.prompts import KEYED, Prompts, read_body
from penstock.router.relay import Asked, Relay
from penstock.router.replica import Replica
from penstock.server.body_memory import BODIES_BYTES, BodyMemory
from penstock.server.errors import RETRY_AFTER_S, ApiError, unavailable
from penstock.server.gate import Gate
from penstock.server.metrics import CONTENT_TYPE
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.read_body import read_any_body
from penstock.server.read_body import read_body as read_json_body
from penstock.server.sites import SiteCheck
from penstock.server.sse import ClientGone, explained, unless_ended

SESSION: Final = "x-session-id"
_JSON_PATHS: Final = (*KEYED, "/v1/embeddings")
_KEY_HEADERS: Final = (b"authorization", b"x-api-key", b"api-key")
_PATIENCE: Final = Timeouts(connect=2.0, head=5.0, idle=5.0)
_MAX_LIST: Final = 4 << 20

Answer = Callable[[Request], Awaitable[Any]]


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
        self._requests.begin_work(OpenRequest.of(request.scope), request.headers.get(TIMEOUT))
        options, path = self._fleet.options, request.url.path
        is_json = path in _JSON_PATHS
        with self._memory.share() as share:
            read = read_json_body if is_json else read_any_body
            data = await read(request, options.max_body_bytes, options.body_timeout_s, share)
        body = (
            read_body(data) if data and "json" in request.headers.get("content-type", "") else None
        )
        named = request.headers.get(SESSION)
        if body is not None:
            named = named or body.prompt_cache_key or body.user
        asked = Asked(
            method="GET" if request.method == "HEAD" else request.method,
            path=path,
            target=_target(request),
            headers=request.scope["headers"],
            data=data,
            body=body,
            session=named,
        )
        return Relay(request, asked, self._fleet, self._prompts)

    async def models(self, request: Request) -> Response:
        """The models of all replicas, each once."""
        headers = [(n, v) for n, v in request.scope["headers"] if n in _KEY_HEADERS]
        replicas = self._fleet.of(self._fleet.ready(None))
        if not replicas:
            raise self._nobody()
        asking = asyncio.gather(*(_models(replica, headers) for replica in replicas))

        async def answers() -> list[tuple[int, bytes]]:
            return await asking

        found: dict[str, dict[str, Any]] = {}
        refusal: tuple[int, bytes] | None = None
        for status, data in await unless_ended(request, request.receive, answers()):
            try:
                if status != 200:
                    raise ValueError
                for card in msgspec.json.decode(data, type=_List).data:
                    found.setdefault(str(card["id"]), card)
            except (msgspec.DecodeError, ValueError, KeyError):
                refusal = refusal or (status, data)
        if not found and refusal is not None and refusal[0] in (401, 403):
            return Response(refusal[1], refusal[0], media_type="application/json")
        cards = [found[name] for name in sorted(found)]
        return _json({"object": "list", "data": cards})

    async def health(self, request: Request) -> Response:
        """Whether this process is alive, which the answer itself shows."""
        return _json({"status": "routing"})

    async def ready(self, request: Request) -> Response:
        """Whether a request that came now would find a replica."""
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "not_ready", RETRY_AFTER_S)
        if not self._fleet.ready(None):
            raise self._nobody()
        return _json({"status": "ready"})

    async def metrics_text(self, request: Request) -> Response:
        text = render(self._fleet, self._prompts, len(self._requests))
        return Response(text, media_type=CONTENT_TYPE)

    def _nobody(self) -> ApiError:
        told = "; ".join(f"{r.url}: {r.trouble or r.state}" for r in self._fleet.replicas)
        return unavailable(f"no replica is ready: {told}", "no_replica", RETRY_AFTER_S)


def build_app(fleet: Fleet, requests: OpenRequests) -> ASGIApp:
    """The application that routes to a fleet."""
    handlers = Handlers(fleet, requests)
    middleware = [
        Middleware(Gate, requests=requests, tracing=None, model=""),
        Middleware(SiteCheck, hosts=fleet.options.hosts, origins=(), keys_needed=False),
    ]
    routes = [
        Route("/health", _answered(handlers.health), methods=["GET"]),
        Route("/ready", _answered(handlers.ready), methods=["GET"]),
        Route("/metrics", _answered(handlers.metrics_text), methods=["GET"]),
        Route("/v1/models", _answered(handlers.models), methods=["GET"]),
        Route("/v1/{rest:path}", _answered(handlers.relay), methods=["GET", "POST", "DELETE"]),
        Route("/tokenize", _answered(handlers.relay), methods=["POST"]),
        Route("/detokenize", _answered(handlers.relay), methods=["POST"]),
    ]
    return Starlette(
        middleware=middleware, routes=routes, exception_handlers={HTTPException: _http_error}
    )


def _target(request: Request) -> str:
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


async def _models(replica: Replica, headers: Headers) -> tuple[int, bytes]:
    try:
        exchange = await replica.pool.exchange("GET", "/v1/models", headers, b"", _PATIENCE)
        try:
            return exchange.status, await exchange.read_all(_MAX_LIST)
        finally:
            exchange.close()
    except UpstreamError as error:
        return 502, str(error).encode()


def _answered(handler: Answer) -> Answer:
    """Wrap ``handler`` so that its errors become responses in OpenAI's format."""

    async def answer(request: Request) -> Any:
        try:
            return await handler(request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            return explained(error).response()

    return answer


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        failure = ApiError(405, f"{request.method} is not allowed for {request.url.path}")
    else:
        failure = ApiError(
            404,
            f"there is nothing at {request.url.path}; the router passes on /v1/..., /tokenize and "
            "/detokenize, and has /health, /ready and /metrics",
            type="not_found_error",
        )
    response = failure.response()
    response.headers.update(error.headers or {})
    return response


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

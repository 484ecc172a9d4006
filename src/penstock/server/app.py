"""The HTTP application: routes, and what every route has in common."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock import __version__
from penstock.errors import EngineDeadError, PenstockError
from penstock.server.engine import Engine
from penstock.server.metrics import CONTENT_TYPE, Metrics
from penstock.server.openai.chat import ChatJob
from penstock.server.openai.completions import CompletionJob
from penstock.server.openai.errors import ApiError, model_not_found
from penstock.server.openai.protocol import BodyDecoder, ChatRequest, CompletionRequest
from penstock.server.sse import ClientGone, EventStream, explained, unless_gone

MAX_BODY_BYTES = 32 << 20
"""Four million prompt tokens as JSON numbers, or as much text as any context holds."""


@dataclass(frozen=True)
class ServerOptions:
    max_body_bytes: int = MAX_BODY_BYTES


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of ``GET /v1/models``."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "penstock"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


Handler = Callable[[Request], Awaitable[Response | EventStream]]


def build_app(engine: Engine, options: ServerOptions = ServerOptions()) -> ASGIApp:
    """The application that serves ``engine``. It does not own the engine and never closes it."""
    server = _Server(engine, options)
    return Starlette(
        routes=[
            Route("/v1/completions", _answered(server.completions), methods=["POST"]),
            Route("/v1/chat/completions", _answered(server.chat), methods=["POST"]),
            Route("/v1/models", _answered(server.models), methods=["GET"]),
            Route("/v1/models/{model:path}", _answered(server.model), methods=["GET"]),
            Route("/health", _answered(server.health), methods=["GET"]),
            Route("/metrics", _answered(server.metrics_text), methods=["GET"]),
            Route("/version", _answered(server.version), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )


class _Server:
    """The handlers, over one engine."""

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self._engine = engine
        self._options = options
        self._metrics = Metrics(engine.model.served_model_name)
        self._card = ModelCard(
            engine.model.served_model_name, int(time.time()), engine.model.max_model_len
        )
        self._completion_decoder = BodyDecoder(CompletionRequest)
        self._chat_decoder = BodyDecoder(ChatRequest)

    async def completions(self, request: Request) -> Response | EventStream:
        body = self._completion_decoder.decode(await self._body(request))
        self._check_model(body.model)
        job = CompletionJob.prepare(body, self._engine, self._metrics)
        return await _run(request, await unless_gone(request.receive, job), bool(body.stream))

    async def chat(self, request: Request) -> Response | EventStream:
        body = self._chat_decoder.decode(await self._body(request))
        self._check_model(body.model)
        job = ChatJob.prepare(body, self._engine, self._metrics)
        return await _run(request, await unless_gone(request.receive, job), bool(body.stream))

    async def models(self, request: Request) -> Response:
        return _json(ModelList([self._card]))

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        if asked != self._card.id:
            raise model_not_found(asked, self._card.id)
        return _json(self._card)

    async def health(self, request: Request) -> Response:
        self._check_alive()
        return Response(status_code=200)

    async def metrics_text(self, request: Request) -> Response:
        try:
            stats = await self._engine.stats()
        except PenstockError:
            stats = None
        return Response(self._metrics.render(stats), media_type=CONTENT_TYPE)

    async def version(self, request: Request) -> Response:
        return _json({"version": __version__})

    def _check_model(self, asked: str) -> None:
        if asked != self._card.id:
            raise model_not_found(asked, self._card.id)
        self._check_alive()

    def _check_alive(self) -> None:
        if self._engine.death is not None:
            raise EngineDeadError(str(self._engine.death))

    async def _body(self, request: Request) -> bytes:
        limit = self._options.max_body_bytes
        too_long = ApiError(
            413, f"the body is longer than the {limit} bytes that this server takes"
        )
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            raise too_long
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_long
        return bytes(body)


async def _run(
    request: Request, job: CompletionJob | ChatJob, stream: bool
) -> Response | EventStream:
    if stream:
        return EventStream(request, job.events(), ApiError.json)
    answer = await unless_gone(request.receive, job.answer())
    return Response(answer, media_type="application/json")


def _answered(handler: Handler) -> Handler:
    """``handler`` with its errors as answers in OpenAI's shape."""

    async def answer(request: Request) -> Response | EventStream:
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
        message = f"{request.method} is not allowed on {request.url.path}"
    elif error.status_code == 404:
        message = f"there is nothing at {request.url.path}"
    else:
        message = error.detail
    answer = ApiError(error.status_code, message).response()
    answer.headers.update(error.headers or {})
    return answer


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

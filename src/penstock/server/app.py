"""The HTTP application: routes, and what every route has in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock import __version__
from penstock.engine.messages import EngineStats
from penstock.errors import OverloadedError, PenstockError
from penstock.server.admin import Admin
from penstock.server.answers import Alive, ModelCard, ModelList, OpenApi, Ready, Version
from penstock.server.gate import TRACE_HEADERS, Gate
from penstock.server.keys import KeyCheck, Keys
from penstock.server.meter import Meter
from penstock.server.metrics import CONTENT_TYPE, Counts, ServerState, render
from penstock.server.open_requests import REQUEST_ID, TIMEOUT, OpenRequest, OpenRequests
from penstock.server.openai import responses_protocol
from penstock.server.openai.body import BodyDecoder
from penstock.server.openai.chat import ChatJob
from penstock.server.openai.completions import CompletionJob
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest, Embeddings
from penstock.server.openai.errors import (
    RETRY_AFTER_S,
    ApiError,
    model_not_found,
    overloaded,
    unavailable,
)
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.responses import Chat, ChatChunk, Completion
from penstock.server.openai.responses_api import ResponseJob
from penstock.server.openai.responses_protocol import ResponseEvent, ResponseRequest
from penstock.server.openai.tokenizing import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
    detokenized,
    tokenized,
)
from penstock.server.openapi import Endpoint, document
from penstock.server.parsing.styles import AUTO, Styles
from penstock.server.read_body import read_body
from penstock.server.sse import ClientGone, EventStream, explained, unless_ended
from penstock.server.supervisor import Supervisor

if TYPE_CHECKING:
    from penstock.server.tracing import Tracing

MAX_BODY_BYTES = 32 << 20
"""Four million prompt tokens as JSON numbers, or as much text as any context holds."""


BODY_TIMEOUT_S = 60.0
"""For the whole body of a request: half a megabyte a second at the largest that is taken."""
STATS_TIMEOUT_S = 2.0
"""A scrape waits no longer for an engine that is in a long step, and tells what it knew."""


@dataclass(frozen=True)
class ServerOptions:
    max_body_bytes: int = MAX_BODY_BYTES
    body_timeout_s: float = BODY_TIMEOUT_S
    keys: Keys = Keys()  # noqa: RUF009
    cors_origins: tuple[str, ...] = ()
    log_prompts: bool = False
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO


Handler = Callable[[Request], Awaitable[Response | EventStream]]


def build_app(
    engine: Supervisor,
    requests: OpenRequests,
    options: ServerOptions = ServerOptions(),
    dropped_log_lines: Callable[[], int] = lambda: 0,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """The application that serves ``engine``. It owns neither that nor ``tracing``."""
    server = _Server(engine, requests, options, dropped_log_lines)
    admin = Admin(engine, requests)
    gate = Middleware(
        Gate, requests=requests, tracing=tracing, model=engine.model.served_model_name
    )
    middleware = [gate]
    if options.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    REQUEST_ID,
                    TIMEOUT,
                    *TRACE_HEADERS,
                ],
                expose_headers=[REQUEST_ID, "Retry-After"],
            )
        )
    middleware.append(Middleware(KeyCheck, keys=options.keys))
    endpoints = [*server.endpoints(), *admin.endpoints()]
    server.openapi = msgspec.json.encode(
        document(endpoints, __version__, keys_needed=bool(options.keys.users))
    )
    return Starlette(
        middleware=middleware,
        routes=[Route(e.path, _answered(e.handler), methods=[e.method]) for e in endpoints],
        exception_handlers={HTTPException: _http_error},
    )


class _Server:
    """The handlers, over one engine."""

    def __init__(
        self,
        engine: Supervisor,
        requests: OpenRequests,
        options: ServerOptions,
        dropped_log_lines: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._options = options
        self._dropped_log_lines = dropped_log_lines
        self._counts = Counts()
        self._known: EngineStats | None = None
        self._card = ModelCard(
            engine.model.served_model_name, int(time.time()), engine.model.max_model_len
        )
        self._styles = Styles.choose(
            options.tool_call_parser,
            options.reasoning_parser,
            engine.tokenizer.settings.chat_templates,
        )
        self._completion_decoder = BodyDecoder(CompletionRequest)
        self._chat_decoder = BodyDecoder(ChatRequest)
        self._response_decoder = BodyDecoder(ResponseRequest)
        self._embedding_decoder = BodyDecoder(EmbeddingRequest)
        self._tokenize_decoder = BodyDecoder(TokenizeRequest)
        self._detokenize_decoder = BodyDecoder(DetokenizeRequest)
        self.openapi = b"{}"

    def endpoints(self) -> list[Endpoint]:
        """All but the administrator's."""
        return [
            Endpoint(
                "POST",
                "/v1/completions",
                self.completions,
                "Continue a text.",
                Completion,
                CompletionRequest,
                Completion,
                works=True,
            ),
            Endpoint(
                "POST",
                "/v1/chat/completions",
                self.chat,
                "Answer the messages of a chat.",
                Chat,
                ChatRequest,
                ChatChunk,
                works=True,
            ),
            Endpoint(
                "POST",
                "/v1/responses",
                self.respond,
                "Answer a text or messages.",
                responses_protocol.Response,
                ResponseRequest,
                ResponseEvent,
                works=True,
            ),
            Endpoint(
                "POST",
                "/v1/embeddings",
                self.embeddings,
                "Embed texts: the model's hidden states, pooled.",
                Embeddings,
                EmbeddingRequest,
                works=True,
            ),
            Endpoint(
                "POST",
                "/tokenize",
                self.tokenize,
                "The tokens of a text or of a chat's messages.",
                Tokens,
                TokenizeRequest,
            ),
            Endpoint(
                "POST",
                "/detokenize",
                self.detokenize,
                "The text of tokens.",
                Text,
                DetokenizeRequest,
            ),
            Endpoint("GET", "/v1/models", self.models, "The model that is served.", ModelList),
            Endpoint("GET", "/v1/models/{model:path}", self.model, "The same by name.", ModelCard),
            Endpoint("GET", "/health", self.health, "Whether it lives.", Alive, access="public"),
            Endpoint("GET", "/ready", self.ready, "Whether it serves.", Ready, access="public"),
            Endpoint("GET", "/metrics", self.metrics_text, "Metrics for Prometheus.", None),
            Endpoint("GET", "/version", self.version, "The server's version.", Version),
            Endpoint("GET", "/openapi.json", self.openapi_json, "This document.", OpenApi),
        ]

    async def completions(self, request: Request) -> Response | EventStream:
        meter = self._begin(request)
        body = self._completion_decoder.decode(await self._body(request))
        self._check_model(body.model)
        job = CompletionJob.prepare(body, self._engine, meter)
        prepared = await unless_ended(request, request.receive, job)
        return await _run(request, prepared, bool(body.stream))

    async def chat(self, request: Request) -> Response | EventStream:
        meter = self._begin(request)
        body = self._chat_decoder.decode(await self._body(request))
        self._check_model(body.model)
        job = ChatJob.prepare(body, self._engine, meter, self._styles)
        prepared = await unless_ended(request, request.receive, job)
        return await _run(request, prepared, bool(body.stream))

    async def respond(self, request: Request) -> Response | EventStream:
        meter = self._begin(request)
        body = self._response_decoder.decode(await self._body(request))
        self._check_model(body.model)
        prepare = ResponseJob.prepare(body, self._engine, meter)
        job = await unless_ended(request, request.receive, prepare)
        if body.stream:
            return EventStream(request, job.events(), job.error)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def embeddings(self, request: Request) -> Response:
        meter = self._begin(request)
        body = self._embedding_decoder.decode(await self._body(request))
        self._check_model(body.model)
        prepare = EmbeddingJob.prepare(body, self._engine, meter)
        job = await unless_ended(request, request.receive, prepare)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def tokenize(self, request: Request) -> Response:
        body = self._tokenize_decoder.decode(await self._body(request))
        if body.model is not None:
            self._check_model(body.model)
        work = tokenized(body, self._engine)
        return _json(await unless_ended(request, request.receive, work))

    async def detokenize(self, request: Request) -> Response:
        body = self._detokenize_decoder.decode(await self._body(request))
        if body.model is not None:
            self._check_model(body.model)
        work = detokenized(body, self._engine)
        return _json(await unless_ended(request, request.receive, work))

    async def openapi_json(self, request: Request) -> Response:
        return Response(self.openapi, media_type="application/json")

    async def models(self, request: Request) -> Response:
        return _json(ModelList([self._card]))

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        if asked != self._card.id:
            raise model_not_found(asked, self._card.id)
        return _json(self._card)

    async def health(self, request: Request) -> Response:
        """Whether this process is alive, which the answer itself shows."""
        return _json(Alive())

    async def ready(self, request: Request) -> Response:
        """Whether a request that came now would be served."""
        trouble = self._requests.draining or self._engine.trouble
        if trouble is not None:
            raise unavailable(trouble, "not_ready", RETRY_AFTER_S)
        return _json(Ready())

    async def metrics_text(self, request: Request) -> Response:
        state = ServerState()
        state.engine_up = self._engine.trouble is None
        state.engine_restarts = self._engine.restarts
        state.open_requests = len(self._requests)
        state.dropped_log_lines = self._dropped_log_lines()
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                self._known = await self._engine.stats()
        except TimeoutError:
            pass
        except PenstockError:
            self._known = None
        state.engine = self._known
        text = render(self._card.id, self._counts, state)
        return Response(text, media_type=CONTENT_TYPE)

    async def version(self, request: Request) -> Response:
        return _json(Version(__version__))

    def _begin(self, request: Request) -> Meter:
        """Let the request in, before its body is read. Raises ApiError if it cannot be now."""
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "draining", RETRY_AFTER_S)
        try:
            self._engine.check()
        except OverloadedError as error:
            self._counts.refused_full += 1
            raise overloaded(str(error), self._requests.retry_after_s()) from None
        opened = OpenRequest.of(request.scope)
        self._requests.begin_work(opened, request.headers.get(TIMEOUT))
        return Meter(self._counts, opened, self._options.log_prompts)

    def _check_model(self, asked: str) -> None:
        if asked != self._card.id:
            raise model_not_found(asked, self._card.id)

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._options.max_body_bytes, self._options.body_timeout_s)


async def _run(
    request: Request, job: CompletionJob | ChatJob, stream: bool
) -> Response | EventStream:
    if stream:
        return EventStream(request, job.events(), ApiError.json)
    answer = await unless_ended(request, request.receive, job.answer())
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


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

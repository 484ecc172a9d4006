"""The handlers of all routes except the administrator's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import OverloadedError, PenstockError
from penstock.interface.messages import EngineStats
from penstock.parsing.styles import Styles
from penstock.server.bodies import Bodies
from penstock.server.body_decoder import BodyDecoder
from penstock.server.callers import Caller
from penstock.server.engine import PlacedEngine
from penstock.server.engine_events import EngineEvents
from penstock.server.errors import (
    RETRY_AFTER_S,
    ApiError,
    model_not_found,
    overloaded,
    unavailable,
)
from penstock.server.ignored import IgnoredFields
from penstock.server.meter import Meter
from penstock.server.metrics import CONTENT_TYPE, Counts, ServerState, render
from penstock.server.model_card import model_card
from penstock.server.observer import Observer
from penstock.server.of_model import OfModel
from penstock.server.open_requests import TIMEOUT, OpenRequest, OpenRequests
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.chat import ChatJob
from penstock.server.openai.completions import CompletionJob
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest
from penstock.server.openai.job import Job
from penstock.server.openai.key_query import PromptKeys
from penstock.server.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, TOKENIZE
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.responses.api import ResponseJob
from penstock.server.openai.responses.protocol import ResponseRequest
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openai.tokenizing import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenized,
    tokenized,
)
from penstock.server.options import ServerOptions
from penstock.server.serving import Serving
from penstock.server.sse import EventStream, unless_ended
from penstock.server.status_structs import (
    Alive,
    ModelList,
    Ready,
    Version,
)
from penstock.server.supervisor import Supervisor
from penstock.server.workload import WorkloadReports
from penstock.version import __version__

Body = TypeVar("Body", bound=msgspec.Struct)
Asked = TypeVar("Asked", CompletionRequest, ChatRequest, ResponseRequest)

STATS_TIMEOUT_S = 2.0
"""Seconds that a scrape waits for an engine in a long step before it reports the last known
values."""


class Handlers:
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
        templates = engine.tokenizer.settings.chat_templates
        styles = Styles.choose(options.tool_call_parser, options.reasoning_parser, templates)
        created = int(time.time())
        self._card = OfModel(
            engine, lambda model: model_card(model, engine.tokenizer, styles, created)
        )
        # All that no profile changes is taken once.
        model, reads = engine.model.served_model_name, TemplateReads.of(templates)
        self._model = model
        self._events = EngineEvents(engine, requests, self._counts, model)
        self._observer = Observer() if options.observe else None
        self.workload = WorkloadReports(self._observer, self._counts, model)
        self._serving = Serving(engine, styles, engine.inputs.grammars, Caller())
        self._completion_decoder = DialectDecoder(CompletionRequest, COMPLETIONS, model)
        self._chat_decoder = DialectDecoder(ChatRequest, CHAT, model, reads)
        self._response_decoder = DialectDecoder(ResponseRequest, RESPONSES, model, reads)
        self._embedding_decoder = DialectDecoder(EmbeddingRequest, EMBEDDINGS, model)
        self._tokenize_decoder = DialectDecoder(TokenizeRequest, TOKENIZE, reads=reads)
        self._detokenize_decoder = DialectDecoder(DetokenizeRequest)
        self._bodies = Bodies(options.max_body_bytes, options.body_timeout_s)
        self.prompt_keys = PromptKeys(
            self._serving,
            self._bodies,
            self._completion_decoder,
            self._chat_decoder,
            self._response_decoder,
        )
        self._ignored = IgnoredFields()
        self.document: Callable[[], bytes] = lambda: b"{}"
        """The OpenAPI document; set once all endpoints are known."""

    async def completions(self, request: Request) -> Response | EventStream:
        return await self._work(request, self._completion_decoder, CompletionJob.prepare)

    async def chat(self, request: Request) -> Response | EventStream:
        return await self._work(request, self._chat_decoder, ChatJob.prepare)

    async def respond(self, request: Request) -> Response | EventStream:
        return await self._work(request, self._response_decoder, ResponseJob.prepare)

    async def embeddings(self, request: Request) -> Response:
        meter = self._begin(request)
        body = await self._decoded(request, self._embedding_decoder)
        self._check_model(body.model)
        serving = await self._admitted(request, body.sequences)
        prepare = EmbeddingJob.prepare(body, serving, meter)
        job = await unless_ended(request, request.receive, prepare)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def tokenize(self, request: Request) -> Response:
        body = await self._decoded(request, self._tokenize_decoder)
        if body.model is not None:
            self._check_model(body.model)
        work = tokenized(body, self._serving_to(request))
        return _json(await unless_ended(request, request.receive, work))

    async def detokenize(self, request: Request) -> Response:
        body = await self._decoded(request, self._detokenize_decoder)
        if body.model is not None:
            self._check_model(body.model)
        work = detokenized(body, self._engine)
        return _json(await unless_ended(request, request.receive, work))

    async def openapi_json(self, request: Request) -> Response:
        return Response(self.document(), media_type="application/json")

    async def models(self, request: Request) -> Response:
        return _json(ModelList([self._card.get()]))

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        self._check_model(asked)
        return _json(self._card.get())

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
        state.server_restarts = self._options.restarts
        state.open_requests = len(self._requests)
        state.dropped_log_lines = self._dropped_log_lines()
        state.ended_jobs = self._engine.inputs.workers.ended
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                self._known = await self._engine.stats()
        except TimeoutError:
            pass
        except PenstockError:
            self._known = None
        state.engine = self._known
        text = render(self._model, self._counts, state, bool(self._options.slo))
        return Response(text, media_type=CONTENT_TYPE)

    async def engine_events(self, request: Request) -> Response | EventStream:
        """What the engine does, as long as the client listens."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return EventStream(request, self._events.events(), ApiError.json)

    async def version(self, request: Request) -> Response:
        return _json(Version(__version__))

    async def _work(
        self,
        request: Request,
        decoder: BodyDecoder[Asked],
        prepare: Callable[[Asked, Serving, Meter], Coroutine[Any, Any, Job]],
    ) -> Response | EventStream:
        meter = self._begin(request)
        body = await self._decoded(request, decoder)
        self._check_model(body.model)
        prepared = prepare(body, await self._admitted(request, body.sequences), meter)
        job = await unless_ended(request, request.receive, prepared)
        if body.stream:
            return EventStream(request, job.events(), job.error)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    def _begin(self, request: Request) -> Meter:
        """Admit the request before its body is read. Raises ApiError if it cannot be admitted
        now."""
        if self._requests.draining is not None:
            raise unavailable(self._requests.draining, "draining", RETRY_AFTER_S)
        opened = OpenRequest.of(request.scope)
        try:
            self._engine.check(opened.caller.tenant)
        except OverloadedError as error:
            raise self._full(error) from None
        self._requests.begin_work(opened, request.headers.get(TIMEOUT))
        options = self._options
        return Meter(self._counts, opened, options.log_prompts, self._observer, options.slo)

    def _serving_to(self, request: Request) -> Serving:
        return replace(self._serving, caller=OpenRequest.of(request.scope).caller)

    async def _admitted(self, request: Request, sequences: int) -> Serving:
        """Let a request for so many sequences use the engine, until it leaves: at once, or when an
        exchange of engines is over. Raises ApiError, and ClientGone."""
        opened, turnstile = OpenRequest.of(request.scope), self._engine.turnstile
        if turnstile.is_open:
            opened.on_leave = turnstile.enter().close
            return self._serving_to(request)
        holding = turnstile.hold(opened.caller.tenant, sequences)
        try:
            entry = await unless_ended(request, request.receive, holding)
        except OverloadedError as error:
            raise self._full(error) from None
        opened.on_leave = entry.close
        opened.notes["held_s"] = round(entry.held_s, 6)
        serving = self._serving_to(request)
        if entry.place is None:
            return serving
        return replace(serving, engine=PlacedEngine(self._engine, entry.place))

    def _full(self, error: OverloadedError) -> ApiError:
        self._counts.refused_full += 1
        return overloaded(str(error), self._requests.retry_after_s())

    def _check_model(self, asked: str) -> None:
        if asked != self._model:
            raise model_not_found(asked, self._model)

    async def _decoded(self, request: Request, decoder: BodyDecoder[Body]) -> Body:
        decoded = await self._bodies.decoded(request, decoder)
        if decoded.ignored:
            self._ignored.report(OpenRequest.of(request.scope), decoded)
        return decoded.request


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

"""The handlers of all routes except the administrator's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.interface.messages import EngineStats
from penstock.parsing.styles import Styles
from penstock.server.anthropic.handlers import MessageHandlers
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.callers import Caller
from penstock.server.engine_events import EngineEvents
from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.intake import Intake
from penstock.server.kserve.handlers import KServeHandlers
from penstock.server.llama.handlers import LlamaHandlers
from penstock.server.metrics import CONTENT_TYPE, Counts, ServerState, render
from penstock.server.model_card import model_card
from penstock.server.observer import Observer
from penstock.server.of_model import OfModel
from penstock.server.ollama.handlers import OllamaHandlers
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.chat import ChatJob
from penstock.server.openai.completions import CompletionJob
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.key_query import (
    PromptKeys,
    PromptReader,
    of_chat,
    of_completion,
    of_response,
)
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
from penstock.server.sse import EventStream, error_event, unless_ended
from penstock.server.status_structs import (
    Alive,
    ModelList,
    Ready,
    Version,
)
from penstock.server.supervisor import Supervisor
from penstock.server.tgi.handlers import TgiHandlers
from penstock.server.workload import WorkloadReports
from penstock.version import __version__

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
        serving = Serving(engine, styles, engine.inputs.grammars, Caller())
        self._intake = Intake(engine, requests, options, self._counts, self._observer, serving)
        self._completion_decoder = DialectDecoder(CompletionRequest, rules_of(COMPLETIONS), model)
        self._chat_decoder = DialectDecoder(ChatRequest, rules_of(CHAT), model, reads)
        self._response_decoder = DialectDecoder(ResponseRequest, rules_of(RESPONSES), model, reads)
        self._embedding_decoder = DialectDecoder(EmbeddingRequest, rules_of(EMBEDDINGS), model)
        self._tokenize_decoder = DialectDecoder(TokenizeRequest, rules_of(TOKENIZE), reads=reads)
        self._detokenize_decoder = DialectDecoder(DetokenizeRequest)
        self.messages = MessageHandlers(self._intake, model, reads)
        self.ollama = OllamaHandlers(self._intake, engine, styles, reads)
        self.kserve = KServeHandlers(self._intake, engine, requests, self._counts)
        self.llama = LlamaHandlers(self._intake, engine, reads)
        self.tgi = TgiHandlers(self._intake, engine)
        self.prompt_keys = PromptKeys(
            serving,
            self._intake.bodies,
            {
                COMPLETIONS: PromptReader(self._completion_decoder, of_completion),
                CHAT: PromptReader(self._chat_decoder, of_chat),
                RESPONSES: PromptReader(self._response_decoder, of_response),
                MESSAGES: self.messages.prompt_reader,
            },
        )
        self.document: Callable[[], bytes] = lambda: b"{}"
        """The OpenAPI document; set once all endpoints are known."""

    async def completions(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._completion_decoder, CompletionJob.prepare)

    async def chat(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._chat_decoder, ChatJob.prepare)

    async def respond(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._response_decoder, ResponseJob.prepare)

    async def embeddings(self, request: Request) -> Response:
        meter = self._intake.begin(request)
        body = await self._intake.decoded(request, self._embedding_decoder)
        self._intake.check_model(body.model)
        serving = await self._intake.admitted(request, body.sequences)
        prepare = EmbeddingJob.prepare(body, serving, meter)
        job = await unless_ended(request, request.receive, prepare)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def tokenize(self, request: Request) -> Response:
        body = await self._intake.decoded(request, self._tokenize_decoder)
        if body.model is not None:
            self._intake.check_model(body.model)
        work = tokenized(body, self._intake.serving_to(request))
        return _json(await unless_ended(request, request.receive, work))

    async def detokenize(self, request: Request) -> Response:
        body = await self._intake.decoded(request, self._detokenize_decoder)
        if body.model is not None:
            self._intake.check_model(body.model)
        work = detokenized(body, self._engine)
        return _json(await unless_ended(request, request.receive, work))

    async def openapi_json(self, request: Request) -> Response:
        return Response(self.document(), media_type="application/json")

    async def models(self, request: Request) -> Response:
        return _json(ModelList([self._card.get()]))

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        self._intake.check_model(asked)
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
        return EventStream(request, self._events.events(), error_event)

    async def version(self, request: Request) -> Response:
        return _json(Version(__version__))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

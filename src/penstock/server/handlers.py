"""The handlers of all routes except the administrator's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.interface.messages import EngineStats
from penstock.parsing.styles import Styles
from penstock.server.adapters import AdapterHandlers
from penstock.server.anthropic.handlers import MessageHandlers
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.callers import Caller
from penstock.server.engine_events import EngineEvents
from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.intake import Intake
from penstock.server.job import whole
from penstock.server.kept import Kept
from penstock.server.kserve.handlers import KServeHandlers
from penstock.server.llama.handlers import LlamaHandlers
from penstock.server.metric_families import MetricFamilies
from penstock.server.metrics import CONTENT_TYPE, AdaptersInUse, Counts, ServerState, render
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
    PromptReaders,
    of_chat,
    of_completion,
    of_response,
)
from penstock.server.openai.paths import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, TOKENIZE
from penstock.server.openai.protocol import ChatRequest, CompletionRequest
from penstock.server.openai.ranking.handlers import RankingHandlers
from penstock.server.openai.responses.handlers import ResponseHandlers
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openai.tokenizing import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenized,
    tokenized,
)
from penstock.server.openapi import Endpoint
from penstock.server.options import ServerOptions
from penstock.server.prefixes import PinnedPrefixes
from penstock.server.serving import Serving
from penstock.server.sse import EventStream, error_event, unless_ended
from penstock.server.status_structs import (
    Alive,
    ModelCard,
    ModelList,
    Ready,
    Version,
)
from penstock.server.supervisor import Supervisor
from penstock.server.tgi.handlers import TgiHandlers
from penstock.server.workload import WorkloadReports
from penstock.version import __version__


class Handlers:
    """The handlers, over one engine. The model has ``aliases`` beside the name it is served under,
    ``counts`` go on where other engines of the model were before, and ``kept`` is what the server
    keeps."""

    def __init__(
        self,
        engine: Supervisor,
        requests: OpenRequests,
        options: ServerOptions,
        dropped_log_lines: Callable[[], int],
        counts: Counts | None = None,
        aliases: Collection[str] = (),
        kept: Kept | None = None,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._options = options
        self._dropped_log_lines = dropped_log_lines
        self._counts = Counts() if counts is None else counts
        templates = engine.tokenizer.settings.chat_templates
        styles = Styles.of(engine.tokenizer, options.tool_call_parser, options.reasoning_parser)
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
        self._intake = Intake(
            engine, requests, options, self._counts, self._observer, serving, aliases
        )
        keeps = engine.model.block_place is not None
        self._completion_decoder = DialectDecoder(
            CompletionRequest, rules_of(COMPLETIONS), model, keeps=keeps
        )
        self._chat_decoder = DialectDecoder(ChatRequest, rules_of(CHAT), model, reads, keeps)
        self.kept = Kept() if kept is None else kept
        self.responses = ResponseHandlers(self._intake, model, reads, self.kept.responses, keeps)
        self._embedding_decoder = DialectDecoder(EmbeddingRequest, rules_of(EMBEDDINGS), model)
        self._tokenize_decoder = DialectDecoder(TokenizeRequest, rules_of(TOKENIZE), reads=reads)
        self._detokenize_decoder = DialectDecoder(DetokenizeRequest)
        self.ranking = RankingHandlers(self._intake, model, reads)
        self.messages = MessageHandlers(self._intake, model, reads, keeps)
        self.ollama = OllamaHandlers(self._intake, engine, styles, reads)
        self.adapters = AdapterHandlers(engine, options)
        self.kserve = KServeHandlers(self._intake, engine, requests, self._counts)
        self.llama = LlamaHandlers(self._intake, engine, reads)
        self.tgi = TgiHandlers(self._intake, engine)
        readers: PromptReaders = {
            COMPLETIONS: PromptReader(self._completion_decoder, of_completion),
            CHAT: PromptReader(self._chat_decoder, of_chat),
            RESPONSES: PromptReader(self.responses.decoder, of_response),
            MESSAGES: self.messages.prompt_reader,
            **self.ollama.prompt_readers,
            **self.llama.prompt_readers,
            **self.tgi.prompt_readers,
            **self.kserve.prompt_readers,
        }
        intake = self._intake
        self.prompt_keys = PromptKeys(serving, intake.bodies, intake.adapter, readers)
        self.prefixes = PinnedPrefixes(
            engine, serving, intake.bodies, intake.adapter, readers, options
        )
        self.document: Callable[[], bytes] = lambda: b"{}"
        """The OpenAPI document; set once all endpoints are known."""

    async def completions(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._completion_decoder, CompletionJob.prepare)

    async def chat(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._chat_decoder, ChatJob.prepare)

    async def embeddings(self, request: Request) -> Response:
        return await self._intake.answered_whole(
            request, self._embedding_decoder, whole(EmbeddingJob.prepare)
        )

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
        return _json(ModelList(self.adapters.cards(self.card)))

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        if self._intake.adapter(asked):
            return _json(self.adapters.card(asked, self.card))
        return _json(self.card)

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
        state = await self.state()
        families = MetricFamilies(self._model, self._options.metric_names)
        text = render(families, self._counts, state, bool(self._options.slo))
        return Response(text, media_type=CONTENT_TYPE)

    def kept_endpoints(self) -> list[Endpoint]:
        return self.kept.endpoints(self._intake.bodies)

    @property
    def card(self) -> ModelCard:
        return self._card.get()

    async def state(self) -> ServerState:
        """What metrics say besides what was counted."""
        state = ServerState()
        state.engine_up = self._engine.trouble is None
        totals = self._counts.engines
        state.engine_restarts = totals.restarts + self._engine.restarts
        state.server_restarts = self._options.restarts
        state.open_requests = len(self._requests)
        state.dropped_log_lines = self._dropped_log_lines()
        state.ended_jobs = totals.ended_jobs + self._engine.inputs.workers.ended
        stats = await totals.ask(self._engine)
        state.engine, state.engines = stats, totals.known
        if stats is not None and self._engine.model.max_loras:
            state.adapters = self._adapters_in_use(stats)
        return state

    async def settle(self) -> None:
        """Count what the engine has done, which is about to end for good."""
        totals = self._counts.engines
        await totals.ask(self._engine)
        totals.end(self._engine.restarts, self._engine.inputs.workers.ended)

    def _adapters_in_use(self, stats: EngineStats) -> AdaptersInUse:
        names = {each.digest: each.name for each in self._engine.adapters}
        running, waiting = (
            tuple(sorted(names[digest] for digest in some if digest in names))
            for some in (stats.running_adapters, stats.waiting_adapters)
        )
        return AdaptersInUse(self._engine.model.max_loras, running, waiting)

    async def engine_events(self, request: Request) -> Response | EventStream:
        """What the engine does, as long as the client listens."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return EventStream(request, self._events.events(), error_event)

    async def version(self, request: Request) -> Response:
        return _json(Version(__version__))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

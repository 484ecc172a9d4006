"""The handlers of the dialect, and its endpoints."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.ipc.wire import ModelFacts
from penstock.sampling.ranges import MAX_SEQUENCES, MAX_STOPS
from penstock.server.engine import Engine
from penstock.server.intake import Intake
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.key_query import PromptReader, PromptReaders, Prompts, of_completion
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import EventStream
from penstock.server.tgi import errors
from penstock.server.tgi.api import GenerationJob
from penstock.server.tgi.field_table import rules_of
from penstock.server.tgi.input import completion_of
from penstock.server.tgi.paths import EITHER, GENERATE, INFO, STREAM
from penstock.server.tgi.protocol import (
    AnyTgiRequest,
    TgiError,
    TgiGenerated,
    TgiGenerateRequest,
    TgiInfo,
    TgiRequest,
    TgiStreamed,
    TgiStreamRequest,
)
from penstock.version import __version__


class TgiHandlers:
    """The handlers, over one engine."""

    def __init__(self, intake: Intake, engine: Engine) -> None:
        self._intake = intake
        self._engine = engine
        model = engine.model.served_model_name
        self._whole = DialectDecoder(TgiGenerateRequest, rules_of(GENERATE), model)
        self._streamed = DialectDecoder(TgiStreamRequest, rules_of(STREAM), model)
        self._either = DialectDecoder(TgiRequest, rules_of(EITHER), model)
        self.prompt_readers: PromptReaders = {
            GENERATE: PromptReader(self._whole, _prompts),
            STREAM: PromptReader(self._streamed, _prompts),
            EITHER: PromptReader(self._either, _prompts),
        }

    async def tgi_generate(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(request, self._whole, GenerationJob.prepare, errors.body)

    async def tgi_generate_stream(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(
            request, self._streamed, GenerationJob.prepare, errors.body
        )

    async def tgi_either(self, request: Request) -> Response | EventStream:
        return await self._intake.answered(
            request, self._either, GenerationJob.prepare, errors.body
        )

    async def tgi_info(self, request: Request) -> Response:
        answer = msgspec.json.encode(_info(self._engine.model))
        return Response(answer, media_type="application/json")

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                GENERATE,
                self.tgi_generate,
                "Continue a text, as Text Generation Inference does.",
                TgiGenerated,
                TgiGenerateRequest,
                works=True,
                rules=rules_of(GENERATE),
                error=TgiError,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                STREAM,
                self.tgi_generate_stream,
                "The same, token by token.",
                None,
                TgiStreamRequest,
                TgiStreamed,
                works=True,
                rules=rules_of(STREAM),
                error=TgiError,
                error_body=errors.body,
            ),
            Endpoint(
                "POST",
                EITHER,
                self.tgi_either,
                "The same, whole or token by token.",
                TgiGenerated,
                TgiRequest,
                TgiStreamed,
                works=True,
                rules=rules_of(EITHER),
                error=TgiError,
                error_body=errors.body,
                listed=True,
            ),
            Endpoint(
                "GET",
                INFO,
                self.tgi_info,
                "The model and the server's limits, as Text Generation Inference tells them.",
                TgiInfo,
            ),
        ]


async def _prompts(request: AnyTgiRequest, serving: Serving) -> Prompts:
    return await of_completion(completion_of(request), serving)


def _info(model: ModelFacts) -> TgiInfo:
    lengths = model.lengths
    return TgiInfo(
        model_id=model.served_model_name,
        max_best_of=MAX_SEQUENCES,
        max_stop_sequences=MAX_STOPS,
        max_input_tokens=lengths.longest_prompt,
        max_input_length=lengths.longest_prompt,
        max_total_tokens=lengths.max_model_len,
        version=__version__,
    )

"""The handlers of the dialect."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.server.body_decoder import BodyDecoder
from penstock.server.errors import RETRY_AFTER_S, ApiError, model_not_found, unavailable
from penstock.server.intake import Intake
from penstock.server.kserve import errors
from penstock.server.kserve.api import VERSION, TextJob
from penstock.server.kserve.input import TextDecoder, completion, merged
from penstock.server.kserve.models import (
    RepositoryChange,
    RepositoryModel,
    RepositoryQuery,
    config,
)
from penstock.server.kserve.paths import GENERATE, GENERATE_STREAM
from penstock.server.kserve.protocol import TextRequest
from penstock.server.kserve.reading import read_tensors
from penstock.server.kserve.status import KServeStatus, ShownModel
from penstock.server.kserve.tensors import InferDecoder, encoded
from penstock.server.metrics import Counts
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.key_query import PromptReader, PromptReaders, Prompts, of_completion
from penstock.server.serving import Serving
from penstock.server.sse import EventStream, unless_ended
from penstock.server.supervisor import Supervisor

Body = TypeVar("Body", bound=msgspec.Struct)

HEADER_LENGTH: Final = "inference-header-content-length"
"""The header, of requests and of answers, that says how many bytes of the body are JSON."""
_VERSIONS: Final = "/versions/"


class KServeHandlers:
    """The handlers, over one engine."""

    def __init__(
        self, intake: Intake, engine: Supervisor, requests: OpenRequests, counts: Counts
    ) -> None:
        self._intake = intake
        self._engine = engine
        self._requests = requests
        self._counts = counts
        self._model = engine.model.served_model_name
        self._texts = TextDecoder()
        self._envelopes = InferDecoder.envelopes()
        self._queries = BodyDecoder(RepositoryQuery)
        reader = PromptReader(self._texts, self._prompts)
        self.prompt_readers: PromptReaders = {GENERATE: reader, GENERATE_STREAM: reader}
        self._changes = BodyDecoder(RepositoryChange)
        self.status = KServeStatus(self, self._query)

    async def kserve_generate(self, request: Request) -> Response:
        job = await self._generating(request, streams=False)
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    async def kserve_generate_stream(self, request: Request) -> EventStream:
        job = await self._generating(request, streams=True)
        return EventStream(request, job.events(), job.error, errors.body)

    async def kserve_infer(self, request: Request) -> Response:
        self._check_model(request)
        meter = self._intake.begin(request)
        decoder = InferDecoder(self._envelopes, self._texts, _header_length(request))
        inference = await self._intake.decoded(request, decoder, read_tensors)
        asked = merged(inference.text)
        if asked.stream:
            raise _no_stream("stream: an answer here is one; ask generate_stream, or by gRPC")
        serving = await self._intake.admitted(request, 1)
        prepare = TextJob.prepare(inference.text, asked, self._model, serving, meter)
        job = await unless_ended(request, request.receive, prepare)
        answer = await unless_ended(request, request.receive, job.whole())
        body, length = encoded(answer, inference)
        if length is None:
            return Response(body, media_type="application/json")
        headers = {HEADER_LENGTH: str(length)}
        return Response(body, headers=headers, media_type="application/octet-stream")

    async def kserve_config(self, request: Request) -> Response:
        self._check_model(request)
        return _json(config(self._engine.model))

    async def _query(self, request: Request) -> RepositoryQuery:
        if not _has_body(request):
            return RepositoryQuery()
        return await self._intake.decoded(request, self._queries, read_tensors)

    async def kserve_load(self, request: Request) -> Response:
        self._check_model(request)
        if _has_body(request):
            change = await self._intake.decoded(request, self._changes, read_tensors)
            if change.parameters:
                raise ApiError(
                    400,
                    f"parameters: the model is served as the server was started, and not with "
                    f"another {next(iter(change.parameters))}; leave them out",
                    param="parameters",
                )
        self._check_ready()
        return _json(RepositoryModel(name=self._model))

    async def kserve_unload(self, request: Request) -> Response:
        self._check_model(request)
        raise ApiError(
            400,
            f"{self._model!r} is served as long as the server runs, and is not unloaded; stop the "
            "server instead",
        )

    async def _generating(self, request: Request, streams: bool) -> TextJob:
        """The job of a request for one answer, or for a stream where ``streams``."""
        self._check_model(request)
        meter = self._intake.begin(request)
        body: TextRequest = await self._intake.decoded(request, self._texts)
        asked = merged(body)
        if asked.stream and not streams:
            raise _no_stream("stream: an answer here is one; ask generate_stream")
        serving = await self._intake.admitted(request, 1)
        prepare = TextJob.prepare(body, asked, self._model, serving, meter)
        return await unless_ended(request, request.receive, prepare)

    async def _prompts(self, request: TextRequest, serving: Serving) -> Prompts:
        asked = completion(self._model, request.text_input, merged(request))
        return await of_completion(asked, serving)

    @property
    def trouble(self) -> str | None:
        return self._requests.draining or self._engine.trouble

    def shown(self) -> list[ShownModel]:
        trouble = self.trouble
        entry = RepositoryModel(name=self._model)
        if trouble is not None:
            entry = RepositoryModel(name=self._model, state="UNAVAILABLE", reason=trouble)
        return [ShownModel(self._model, entry, trouble, self._counts, self._engine)]

    def shown_at(self, request: Request) -> ShownModel:
        self._check_model(request)
        return self.shown()[0]

    def _check_ready(self) -> None:
        trouble = self.trouble
        if trouble is not None:
            raise unavailable(trouble, "not_ready", RETRY_AFTER_S)

    def _check_model(self, request: Request) -> None:
        """Raise ApiError unless the path names the model, and its version if it names one."""
        asked = request.path_params["model"]
        name, found, version = asked.rpartition(_VERSIONS)
        if asked == self._model or (found and (name, version) == (self._model, VERSION)):
            return
        if found and name == self._model:
            raise ApiError(
                404,
                f"there is no version {version!r} of {name!r} here; its only one is {VERSION}",
                type="not_found_error",
                code="model_not_found",
            )
        raise model_not_found(asked, self._model)


def _header_length(request: Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > 12:
        raise ApiError(
            400, f"the header Inference-Header-Content-Length is no number of bytes: {text[:40]!r}"
        )
    return int(text)


def _has_body(request: Request) -> bool:
    headers = request.headers
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _no_stream(why: str) -> ApiError:
    return ApiError(400, why, param="stream")


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

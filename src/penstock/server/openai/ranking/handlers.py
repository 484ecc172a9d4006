"""The handlers of ``/classify``, ``/score``, ``/rerank`` and ``/pooling``, and their endpoints."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from penstock.server.intake import Intake, with_adapter
from penstock.server.meter import Meter
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import (
    CLASSIFIES,
    CLASSIFY,
    POOLING,
    RERANK,
    RERANKS,
    SCORE,
    SCORES,
)
from penstock.server.openai.ranking.jobs import ClassifyJob, PoolingJob, RerankJob, ScoreJob
from penstock.server.openai.ranking.protocol import (
    Classifications,
    ClassifyRequest,
    Pooled,
    PoolingRequest,
    Reranking,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from penstock.server.openai.template_reads import TemplateReads
from penstock.server.openapi import Endpoint
from penstock.server.serving import Serving
from penstock.server.sse import unless_ended

Body = TypeVar("Body", ClassifyRequest, ScoreRequest, RerankRequest, PoolingRequest)


class WholeJob(Protocol):
    """One validated request whose answer is never streamed."""

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        ...


class RankingHandlers:
    """The handlers; ``model`` is used where a body names none, and ``reads`` are the variables that
    chat templates read."""

    def __init__(self, intake: Intake, model: str, reads: TemplateReads) -> None:
        self._intake = intake
        self._texts = DialectDecoder(ClassifyRequest, rules_of(CLASSIFY), model, reads)
        self._scores = DialectDecoder(ScoreRequest, rules_of(SCORE), model)
        self._rankings = DialectDecoder(RerankRequest, rules_of(RERANK), model)
        self._vectors = DialectDecoder(PoolingRequest, rules_of(POOLING), model)

    async def classify(self, request: Request) -> Response:
        return await self._answered(request, self._texts, ClassifyJob.prepare)

    async def score(self, request: Request) -> Response:
        return await self._answered(request, self._scores, ScoreJob.prepare)

    async def rerank(self, request: Request) -> Response:
        return await self._answered(request, self._rankings, RerankJob.prepare)

    async def pool(self, request: Request) -> Response:
        return await self._answered(request, self._vectors, PoolingJob.prepare)

    async def _answered(
        self,
        request: Request,
        decoder: DialectDecoder[Body],
        prepare: Callable[[Body, Serving, Meter], Coroutine[Any, Any, WholeJob]],
    ) -> Response:
        meter = self._intake.begin(request)
        body = await self._intake.decoded(request, decoder)
        adapter = self._intake.adapter(body.model)
        serving = with_adapter(await self._intake.admitted(request, body.sequences), adapter)
        job = await unless_ended(request, request.receive, prepare(body, serving, meter))
        answer = await unless_ended(request, request.receive, job.answer())
        return Response(answer, media_type="application/json")

    def endpoints(self) -> list[Endpoint]:
        return [
            *(
                Endpoint(
                    "POST",
                    path,
                    self.classify,
                    "Classify texts, or a chat, by a model that has labels.",
                    Classifications,
                    ClassifyRequest,
                    works=True,
                    rules=rules_of(CLASSIFY),
                )
                for path in CLASSIFIES
            ),
            *(
                Endpoint(
                    "POST",
                    path,
                    self.score,
                    "Score pairs of texts: how well they fit, or how alike they are.",
                    Scores,
                    ScoreRequest,
                    works=True,
                    rules=rules_of(SCORE),
                )
                for path in SCORES
            ),
            *(
                Endpoint(
                    "POST",
                    path,
                    self.rerank,
                    "Rank documents by how well each fits a query.",
                    Reranking,
                    RerankRequest,
                    works=True,
                    rules=rules_of(RERANK),
                )
                for path in RERANKS
            ),
            Endpoint(
                "POST",
                POOLING,
                self.pool,
                "The vectors of texts, as embeddings are.",
                Pooled,
                PoolingRequest,
                works=True,
                rules=rules_of(POOLING),
            ),
        ]

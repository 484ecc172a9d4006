"""The handlers of ``/classify``, ``/score``, ``/rerank`` and ``/pooling``, and their endpoints."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.server.intake import Intake
from penstock.server.job import whole
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
        return await self._intake.answered_whole(request, self._texts, whole(ClassifyJob.prepare))

    async def score(self, request: Request) -> Response:
        return await self._intake.answered_whole(request, self._scores, whole(ScoreJob.prepare))

    async def rerank(self, request: Request) -> Response:
        return await self._intake.answered_whole(request, self._rankings, whole(RerankJob.prepare))

    async def pool(self, request: Request) -> Response:
        return await self._intake.answered_whole(request, self._vectors, whole(PoolingJob.prepare))

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

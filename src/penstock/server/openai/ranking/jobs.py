"""Classifies texts, scores pairs of texts, ranks documents, and answers vectors as they are.

What is said of a text or pair depends on it alone, whatever else is in the request.
"""

from __future__ import annotations

import time
import uuid

import msgspec

from penstock.pooling.labels import Labels
from penstock.pooling.task_check import check_task
from penstock.server.errors import ApiError
from penstock.server.meter import Meter
from penstock.server.openai.embeddings import (
    MAX_INPUTS,
    EmbeddingJob,
    EmbeddingRequest,
    tokenized,
)
from penstock.server.openai.functions import with_tools
from penstock.server.openai.messages import chat_prompt
from penstock.server.openai.prompts import names_of
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.ranking.pairs import CLASSIFYING, PairScores, pair_scores, shared
from penstock.server.openai.ranking.protocol import (
    Classifications,
    ClassificationUsage,
    Classified,
    ClassifyRequest,
    Pooled,
    PooledVector,
    PoolingRequest,
    RankedDocument,
    RankingUsage,
    Reranking,
    RerankRequest,
    RerankResult,
    Score,
    ScoreRequest,
    Scores,
)
from penstock.server.openai.vectors import Vectors
from penstock.server.serving import Serving


class ClassifyJob:
    """One validated request to classify."""

    def __init__(self, request: ClassifyRequest, labels: Labels, vectors: Vectors) -> None:
        self._request = request
        self._labels = labels
        self._vectors = vectors

    @classmethod
    async def prepare(cls, request: ClassifyRequest, serving: Serving, meter: Meter) -> ClassifyJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        engine, options = serving.engine, serving.caller.options(request)
        labels = engine.model.labels
        check_task(CLASSIFYING, labels)
        assert labels is not None
        prompts, names = await _texts_or_chat(request, serving)
        vectors = Vectors(prompts, names, CLASSIFYING, engine, meter, options)
        return cls(request, labels, vectors)

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        activated = self._request.use_activation is not False
        found = [self._labels.values(each, activated) for each in await self._vectors.computed()]
        tokens = self._vectors.num_tokens
        return msgspec.json.encode(
            Classifications(
                id=f"classify-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._request.model,
                data=[
                    Classified(
                        index=i,
                        label=self._labels.likeliest(values),
                        probs=values,
                        num_classes=len(values),
                    )
                    for i, values in enumerate(found)
                ],
                usage=ClassificationUsage(prompt_tokens=tokens, total_tokens=tokens),
            )
        )


class ScoreJob:
    """One validated request to score pairs."""

    def __init__(self, request: ScoreRequest, pairs: PairScores) -> None:
        self._request = request
        self._pairs = pairs

    @classmethod
    async def prepare(cls, request: ScoreRequest, serving: Serving, meter: Meter) -> ScoreJob:
        """Raises as :meth:`ClassifyJob.prepare`."""
        first, second = _listed(request.text_1, "text_1"), _listed(request.text_2, "text_2")
        if len(first) not in (1, len(second)):
            raise ApiError(
                400,
                f"text_1 has {len(first)} texts and text_2 has {len(second)}: send one for all of "
                "text_2, or as many",
                param="text_1",
            )
        names = names_of(first, "text_1"), names_of(second, "text_2")
        return cls(request, await pair_scores(request, (first, second), names, serving, meter))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        scores = await self._pairs.scores()
        return msgspec.json.encode(
            Scores(
                id=f"score-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._request.model,
                data=[Score(index=i, score=score) for i, score in enumerate(scores)],
                usage=_usage(self._pairs.num_tokens),
            )
        )


class RerankJob:
    """One validated request to rank documents."""

    def __init__(self, request: RerankRequest, pairs: PairScores) -> None:
        self._request = request
        self._pairs = pairs

    @classmethod
    async def prepare(cls, request: RerankRequest, serving: Serving, meter: Meter) -> RerankJob:
        """Raises as :meth:`ClassifyJob.prepare`."""
        if request.top_n is not None and request.top_n < 0:
            raise ApiError(
                400, f"top_n must be at least 1, or 0 for all, not {request.top_n}", param="top_n"
            )
        documents = _listed(request.texts, "documents")
        names = ["query"], [f"documents[{i}]" for i in range(len(documents))]
        texts = [request.query], documents
        return cls(request, await pair_scores(request, texts, names, serving, meter))

    async def answer(self) -> bytes:
        """The whole answer as JSON; of documents with the same score the first comes first."""
        scores = await self._pairs.scores()
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        texts = self._request.texts
        shown = self._request.return_documents is not False
        results = [
            RerankResult(
                index=i,
                document=RankedDocument(text=texts[i]) if shown else msgspec.UNSET,
                relevance_score=scores[i],
            )
            for i in best[: self._request.top_n or None]
        ]
        return msgspec.json.encode(
            Reranking(
                id=f"rerank-{uuid.uuid4().hex}",
                model=self._request.model,
                results=results,
                usage=_usage(self._pairs.num_tokens),
            )
        )


class PoolingJob:
    """One validated request for vectors."""

    def __init__(self, request: PoolingRequest, texts: EmbeddingJob) -> None:
        self._request = request
        self._texts = texts

    @classmethod
    async def prepare(cls, request: PoolingRequest, serving: Serving, meter: Meter) -> PoolingJob:
        """Raises as :meth:`ScoreJob.prepare`."""
        asked = EmbeddingRequest(
            input=request.input,
            encoding_format=request.encoding_format,
            normalize=request.normalize,
            **shared(request),
        )
        return cls(request, await EmbeddingJob.prepare(asked, serving, meter))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        vectors = await self._texts.encoded()
        return msgspec.json.encode(
            Pooled(
                id=f"pool-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._request.model,
                data=[PooledVector(index=i, data=vector) for i, vector in enumerate(vectors)],
                usage=_usage(self._texts.num_tokens),
            )
        )


async def _texts_or_chat(
    request: ClassifyRequest, serving: Serving
) -> tuple[list[list[int]], list[str]]:
    """The prompts that are to be classified, and what the client calls them."""
    if (request.input is None) == (request.messages is None):
        raise ApiError(400, "give either input or messages", param="input")
    if request.input is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(request, name) is not None:
                raise ApiError(400, f"{name} is only allowed with messages", param=name)
        return await tokenized(request.input, serving, request.add_special_tokens is not False)
    chat = ChatRequest(
        model=request.model,
        messages=request.messages or [],
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt is True,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    tokens = await chat_prompt(
        with_tools(chat), serving.engine, serving.styles, tenant=serving.caller.name
    )
    return [list(tokens)], ["messages"]


def _listed(texts: str | list[str], name: str) -> list[str]:
    """The texts of a field. Raises ApiError for none, and for too many."""
    if isinstance(texts, str):
        return [texts]
    if not 0 < len(texts) < MAX_INPUTS:
        raise ApiError(
            400, f"{name} has {len(texts)} entries; send 1 to {MAX_INPUTS - 1}", param=name
        )
    return texts


def _usage(tokens: int) -> RankingUsage:
    return RankingUsage(tokens, tokens)

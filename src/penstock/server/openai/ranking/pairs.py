"""The scores of pairs of texts: by a model that judges both together, or by their embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.pooling.labels import Labels
from penstock.pooling.params import PoolingParams
from penstock.pooling.similarity import cosine
from penstock.pooling.task_check import check_pairs
from penstock.server.errors import ApiError
from penstock.server.meter import Meter
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest
from penstock.server.openai.ranking.protocol import PairRequest, Ranked
from penstock.server.openai.renamed import by_names
from penstock.server.openai.vectors import Vectors
from penstock.server.serving import Serving
from penstock.tokenizer.pairs import (
    check_instruction,
    pair_messages,
    pair_template,
    pair_variables,
    side_by_side,
)

CLASSIFYING: Final = PoolingParams(task="classify")
_RENDERED_AT_ONCE: Final = 16
"""Templates of one request with worker processes at a time."""

Sides = tuple[Sequence[str], Sequence[str]]
"""Texts of the two sides of pairs, or what the client calls them; the first may be one for all."""


class PairScores(Protocol):
    """Pairs that are checked and tokenized."""

    @property
    def num_tokens(self) -> int: ...

    async def scores(self) -> list[float]:
        """The score of each pair."""
        ...


async def pair_scores(
    request: PairRequest, texts: Sides, names: Sides, serving: Serving, meter: Meter
) -> PairScores:
    """Raises ApiError and RequestError for what is refused before the engine runs."""
    labels = serving.engine.model.labels
    if labels is None:
        return await _by_embeddings(request, texts, names, serving, meter)
    for name in ("dimensions", "pooling"):
        if getattr(request, name) is not None:
            raise ApiError(400, f"{name} is for embeddings, and this model has none", param=name)
    check_pairs(labels)
    prompts = await _tokenized(request, labels, texts, names, serving)
    options = serving.caller.options(request)
    vectors = Vectors(prompts, names[1], CLASSIFYING, serving.engine, meter, options)
    return _Judged(labels, vectors, request.use_activation is not False)


@dataclass(frozen=True)
class _Judged:
    """Pairs that the model judges."""

    labels: Labels
    vectors: Vectors
    activated: bool

    @property
    def num_tokens(self) -> int:
        return self.vectors.num_tokens

    async def scores(self) -> list[float]:
        logits = await self.vectors.computed()
        return [self.labels.score(each, self.activated) for each in logits]


@dataclass(frozen=True)
class _Compared:
    """Texts whose embeddings are compared: ``first`` of them with the others."""

    texts: EmbeddingJob
    first: int

    @property
    def num_tokens(self) -> int:
        return self.texts.num_tokens

    async def scores(self) -> list[float]:
        vectors = await self.texts.embeddings()
        one, others = vectors[: self.first], vectors[self.first :]
        return [cosine(one[i if self.first > 1 else 0], each) for i, each in enumerate(others)]


async def _by_embeddings(
    request: PairRequest, texts: Sides, names: Sides, serving: Serving, meter: Meter
) -> _Compared:
    if request.instruction is not None:
        raise ApiError(
            400,
            "instruction is for models that judge both texts, and this one's scores are "
            "similarities of embeddings; put it into the texts",
            param="instruction",
        )
    if request.use_activation is False:
        raise ApiError(
            400,
            "use_activation is for models that classify, and this one's scores are similarities; "
            "leave it out",
            param="use_activation",
        )
    asked = EmbeddingRequest(input=[*texts[0], *texts[1]], **shared(request))
    job = await EmbeddingJob.prepare(asked, serving, meter, [*names[0], *names[1]])
    return _Compared(job, len(texts[0]))


def shared(request: Ranked) -> dict[str, Any]:
    """What a request has in common with one for embeddings."""
    return {field: getattr(request, field) for field in Ranked.__struct_fields__}


async def _tokenized(
    request: PairRequest, labels: Labels, texts: Sides, names: Sides, serving: Serving
) -> list[list[int]]:
    """The prompt of each pair, by a template of pairs or else side by side."""
    inputs, tenant = serving.engine.inputs, serving.caller.name
    tokenizer = serving.engine.tokenizer
    template = pair_template(tokenizer, labels.names)
    check_instruction(request.instruction, template)
    for side, called in zip(texts, names, strict=True):
        for text, name in zip(side, called, strict=True):
            if not text:
                raise ApiError(400, f"{name} is empty; give it a text", param=name)
    alone = len(texts[0]) == 1
    if template is None:
        encoded = await inputs.encode(
            [*texts[0], *texts[1]],
            params=[*names[0], *names[1]],
            add_special_tokens=False,
            parse_special=False,
            tenant=tenant,
        )
        one, others = encoded[: len(texts[0])], encoded[len(texts[0]) :]
        return [
            side_by_side(tokenizer, one[0 if alone else i], each) for i, each in enumerate(others)
        ]
    room = asyncio.Semaphore(_RENDERED_AT_ONCE)

    async def rendered(i: int, document: str) -> list[int]:
        called = {"messages": names[1][i], "prompt": names[1][i]}
        async with room:
            with by_names(called):
                return await inputs.encode_chat(
                    pair_messages(texts[0][0 if alone else i], document, request.instruction),
                    chat_template_kwargs=pair_variables(request.instruction),
                    chat_template=template,
                    tenant=tenant,
                )

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rendered(i, each)) for i, each in enumerate(texts[1])]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]

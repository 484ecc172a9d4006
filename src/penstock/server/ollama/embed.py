"""``POST /api/embed`` and the older ``POST /api/embeddings``."""

from __future__ import annotations

import time

import msgspec

from penstock.server.meter import Meter
from penstock.server.ollama.protocol import Embedded, EmbedRequest, OldEmbedded, OldEmbedRequest
from penstock.server.openai.embeddings import EmbeddingJob, EmbeddingRequest
from penstock.server.serving import Serving


async def embedded(request: EmbedRequest, serving: Serving, meter: Meter) -> bytes:
    """The answer as JSON. Raises ApiError or RequestError for what is refused."""
    begun = time.monotonic_ns()
    job = await EmbeddingJob.prepare(_asked(request), serving, meter)
    return msgspec.json.encode(
        Embedded(
            model=request.model,
            embeddings=await job.embeddings(),
            total_duration=time.monotonic_ns() - begun,
            prompt_eval_count=job.num_tokens,
        )
    )


async def embedded_one(request: OldEmbedRequest, serving: Serving, meter: Meter) -> bytes:
    """The answer of the older endpoint as JSON: raises as the newer."""
    asked = EmbedRequest(model=request.model, input=request.prompt)
    job = await EmbeddingJob.prepare(_asked(asked), serving, meter)
    (embedding,) = await job.embeddings()
    return msgspec.json.encode(OldEmbedded(embedding=embedding))


def _asked(request: EmbedRequest) -> EmbeddingRequest:
    given: str | list[str | int | list[int]]
    given = request.input if isinstance(request.input, str) else list(request.input)
    return EmbeddingRequest(
        model=request.model,
        input=given,
        dimensions=request.dimensions,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )

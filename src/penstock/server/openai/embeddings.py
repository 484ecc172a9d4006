"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from penstock.pooling.params import PoolingKind, PoolingParams
from penstock.pooling.pooler import EMBEDDING_DTYPE
from penstock.pooling.task_check import check_task
from penstock.server.meter import Meter
from penstock.server.openai.prompts import names_of, split_prompts
from penstock.server.openai.protocol import Prompt, count_prompts
from penstock.server.openai.vectors import MAX_AT_ONCE, Vectors
from penstock.server.serving import Serving

MAX_INPUTS = 2048
"""Most inputs in one request, as in OpenAI's API."""


class EmbeddingRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/embeddings``."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    """``base64`` is base64 of little-endian float32 values."""
    dimensions: int | None = None
    user: str | None = None
    """The end user whom the request is for; see docs/serve.md on fairness."""
    safety_identifier: str | None = None
    """The newer name of ``user``, which takes precedence over it."""

    # Extensions.
    pooling: PoolingKind | None = None
    normalize: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    add_special_tokens: bool | None = None

    @property
    def sequences(self) -> int:
        """How many it opens at once."""
        return min(count_prompts(self.input), MAX_AT_ONCE)


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The response: one embedding for each input, in order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class EmbeddingJob:
    """One validated request: its inputs are tokenized and its options are checked."""

    def __init__(self, request: EmbeddingRequest, vectors: Vectors) -> None:
        self._request = request
        self._vectors = vectors

    @classmethod
    async def prepare(
        cls,
        request: EmbeddingRequest,
        serving: Serving,
        meter: Meter,
        names: Sequence[str] = (),
    ) -> EmbeddingJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs. ``names`` are what the client calls the texts of ``input``, where it has others."""
        options = serving.caller.options(request)
        pooling = PoolingParams(
            pooling=request.pooling or "last",
            normalize=request.normalize is not False,
            dimensions=request.dimensions,
        )
        pooling.validate()
        check_task(pooling, serving.engine.model.labels)
        prompts, called = await tokenized(
            request.input, serving, request.add_special_tokens is not False, names
        )
        return cls(request, Vectors(prompts, called, pooling, serving.engine, meter, options))

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return self._vectors.num_tokens

    async def embeddings(self) -> list[list[float]]:
        """The embedding of each input, in order."""
        return list(map(_numbers, await self._vectors.computed()))

    async def encoded(self) -> list[list[float] | str]:
        """The embedding of each input, in the form that was asked for."""
        return list(map(self._encoded, await self._vectors.computed()))

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        vectors = await self.encoded()
        tokens = self.num_tokens
        return msgspec.json.encode(
            Embeddings(
                data=[Embedding(index=i, embedding=vector) for i, vector in enumerate(vectors)],
                model=self._request.model,
                usage=EmbeddingUsage(tokens, tokens),
            )
        )

    def _encoded(self, embedding: bytes) -> list[float] | str:
        if self._request.encoding_format == "base64":
            return base64.b64encode(embedding).decode("ascii")
        return _numbers(embedding)


def _numbers(embedding: bytes) -> list[float]:
    numbers: list[float] = np.frombuffer(embedding, EMBEDDING_DTYPE).tolist()
    return numbers


async def tokenized(
    given: Prompt, serving: Serving, add_special_tokens: bool, names: Sequence[str] = ()
) -> tuple[list[list[int]], list[str]]:
    """The token ids of each input, and what the client calls it: by default ``input``, or a place
    in it. Raises ApiError and RequestError."""
    inputs = split_prompts(given, "input", MAX_INPUTS)
    texts = [each for each in inputs if isinstance(each, str)]
    encoded = await serving.engine.inputs.encode(
        texts,
        params=names or names_of(texts, "input"),
        add_special_tokens=add_special_tokens,
        tenant=serving.caller.name,
    )
    tokens = iter(encoded)
    several = not isinstance(given, str) and type(given[0]) is not int
    usual = [f"input[{i}]" if several else "input" for i in range(len(inputs))]
    prompts = [next(tokens) if isinstance(each, str) else each for each in inputs]
    return prompts, list(names or usual)

"""``POST /v1/embeddings``."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Literal

import msgspec
import numpy as np

from penstock.frontend.outputs import RequestOutput
from penstock.interface.messages import EngineRequest, RequestOptions
from penstock.interface.request_checks import check_length
from penstock.interface.token_ids import check_token_ids
from penstock.pooling.params import PoolingKind, PoolingParams
from penstock.pooling.pooler import EMBEDDING_DTYPE
from penstock.server.engine import Engine
from penstock.server.fanout import Generation, last
from penstock.server.meter import Meter
from penstock.server.openai.completions import names_of, split_prompts
from penstock.server.openai.protocol import Prompt, count_prompts
from penstock.server.serving import Serving

MAX_INPUTS = 2048
"""Most inputs in one request, as in OpenAI's API."""
MAX_AT_ONCE = 256
"""Most inputs of one request in the engine's queue at a time, so that a long list does not fill the
queue for everyone else."""


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

    def __init__(
        self,
        request: EmbeddingRequest,
        inputs: list[list[int]],
        pooling: PoolingParams,
        engine: Engine,
        meter: Meter,
        options: RequestOptions,
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._pooling = pooling
        self._engine = engine
        self._meter = meter
        self._options = options
        self._id = f"embd-{uuid.uuid4().hex}"

    @classmethod
    async def prepare(
        cls, request: EmbeddingRequest, serving: Serving, meter: Meter
    ) -> EmbeddingJob:
        """Validate a request. Raises ApiError or RequestError for what is refused before the engine
        runs."""
        engine = serving.engine
        options = serving.caller.options(request)
        pooling = PoolingParams(
            pooling=request.pooling or "last",
            normalize=request.normalize is not False,
            dimensions=request.dimensions,
        )
        pooling.validate()
        inputs = await _tokenized(request, serving)
        several = not isinstance(request.input, str) and type(request.input[0]) is not int
        for i, tokens in enumerate(inputs):
            name = f"input[{i}]" if several else "input"
            check_length(len(tokens), None, engine.model.lengths, name)
            check_token_ids(tokens, engine.model.vocab_size, name)
        return cls(request, inputs, pooling, engine, meter, options)

    @property
    def num_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(map(len, self._inputs))

    async def embeddings(self) -> list[list[float]]:
        """The embedding of each input, in order."""
        return [_numbers(output.embedding or b"") for output in await self._outputs()]

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        outputs = await self._outputs()
        tokens = self.num_tokens
        return msgspec.json.encode(
            Embeddings(
                data=[
                    Embedding(index=i, embedding=self._encoded(output.embedding or b""))
                    for i, output in enumerate(outputs)
                ],
                model=self._request.model,
                usage=EmbeddingUsage(tokens, tokens),
            )
        )

    async def _outputs(self) -> list[RequestOutput]:
        """Return the output of each input. If one fails, all others have ended before this
        raises."""
        ended: dict[int, RequestOutput] = {}
        waiting = iter(enumerate(self._inputs))

        async def work() -> None:
            for i, tokens in waiting:
                (ended[i],) = await last([self._generation(i, tokens)])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(self._inputs), MAX_AT_ONCE)):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [ended[i] for i in range(len(self._inputs))]

    def _generation(self, i: int, tokens: list[int]) -> Generation:
        asked = EngineRequest.of(f"{self._id}-{i}", tokens, self._pooling, self._options)
        return self._meter.measured(asked, self._engine.outputs(asked))

    def _encoded(self, embedding: bytes) -> list[float] | str:
        if self._request.encoding_format == "base64":
            return base64.b64encode(embedding).decode("ascii")
        return _numbers(embedding)


def _numbers(embedding: bytes) -> list[float]:
    numbers: list[float] = np.frombuffer(embedding, EMBEDDING_DTYPE).tolist()
    return numbers


async def _tokenized(request: EmbeddingRequest, serving: Serving) -> list[list[int]]:
    given = split_prompts(request.input, "input", MAX_INPUTS)
    add_special = request.add_special_tokens is not False
    texts = [each for each in given if isinstance(each, str)]
    names = names_of(texts, "input")
    encoded = await serving.engine.inputs.encode(
        texts, params=names, add_special_tokens=add_special, tenant=serving.caller.name
    )
    tokens = iter(encoded)
    return [next(tokens) if isinstance(each, str) else each for each in given]

"""Prompts of which the engine makes a vector each, for all endpoints that generate nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from penstock.frontend.outputs import RequestOutput
from penstock.interface.messages import EngineRequest, RequestOptions
from penstock.interface.request_checks import check_length
from penstock.interface.token_ids import check_token_ids
from penstock.pooling.params import PoolingParams
from penstock.pooling.task_check import check_task
from penstock.server.engine import Engine
from penstock.server.fanout import Generation, last
from penstock.server.meter import Meter

MAX_AT_ONCE = 256
"""Most prompts of one request in the engine's queue at a time, so that a long list does not fill
the queue for everyone else."""


class Vectors:
    """The prompts of one request, checked, and how each becomes a vector."""

    def __init__(
        self,
        prompts: Sequence[list[int]],
        names: Sequence[str],
        pooling: PoolingParams,
        engine: Engine,
        meter: Meter,
        options: RequestOptions,
    ) -> None:
        """``names`` are what the client calls the prompts. Raises RequestError naming the one that
        the engine would not take."""
        pooling.validate()
        check_task(pooling, engine.model.labels)
        for tokens, name in zip(prompts, names, strict=True):
            check_length(len(tokens), None, engine.model.lengths, name)
            check_token_ids(tokens, engine.model.vocab_size, name)
        self._prompts = prompts
        self._pooling = pooling
        self._engine = engine
        self._meter = meter
        self._options = options
        self._id = f"embd-{uuid.uuid4().hex}"

    @property
    def num_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self._prompts))

    async def computed(self) -> list[bytes]:
        """The vector of each prompt, in order, as the engine encodes it. If one fails, all others
        have ended before this raises."""
        ended: dict[int, RequestOutput] = {}
        waiting = iter(enumerate(self._prompts))

        async def work() -> None:
            for i, tokens in waiting:
                (ended[i],) = await last([self._generation(i, tokens)])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(self._prompts), MAX_AT_ONCE)):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [ended[i].embedding or b"" for i in range(len(self._prompts))]

    def _generation(self, i: int, tokens: list[int]) -> Generation:
        asked = EngineRequest.of(f"{self._id}-{i}", tokens, self._pooling, self._options)
        return self._meter.measured(asked, self._engine.outputs(asked))

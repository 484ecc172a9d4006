"""The engine interface that the API dialects use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from penstock.engine.ipc.wire import ModelFacts
from penstock.frontend.async_llm import DEFAULT_OPTIONS
from penstock.frontend.outputs import RequestOutput
from penstock.interface.messages import RequestOptions
from penstock.pooling.params import PoolingParams
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import Tokenizer


class Engine(Protocol):
    """:class:`penstock.server.supervisor.Supervisor`, or a double in tests."""

    @property
    def model(self) -> ModelFacts: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def encode_all(
        self,
        texts: Sequence[str],
        params: Sequence[str],
        *,
        add_special_tokens: bool = True,
        tenant: str = "",
    ) -> list[list[int]]: ...

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        tenant: str = "",
    ) -> list[int]: ...

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
        prompt_text: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def embed(
        self,
        prompt: str | Sequence[int],
        pooling: PoolingParams | None = None,
        *,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> AsyncGenerator[RequestOutput, None]: ...

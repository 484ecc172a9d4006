"""The engine interface that the API dialects use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from penstock.engine.ipc.wire import ModelFacts
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.outputs import RequestOutput
from penstock.interface.messages import EngineRequest
from penstock.tokenizer import Tokenizer


class Engine(Protocol):
    """:class:`penstock.server.supervisor.Supervisor`, or a double in tests."""

    @property
    def model(self) -> ModelFacts: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def inputs(self) -> InputProcessor:
        """Turns texts and chats into token ids."""
        ...

    def outputs(
        self, request: EngineRequest, prompt_text: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Serve a request; as :meth:`penstock.frontend.async_llm.AsyncLLM.outputs`."""
        ...

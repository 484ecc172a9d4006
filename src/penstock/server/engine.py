"""The engine interface that the API dialects use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from penstock.engine.ipc.wire import ModelFacts
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.open_sequences import Place
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
        self,
        request: EngineRequest,
        prompt_text: str | None = None,
        place: Place | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Serve a request; as :meth:`penstock.frontend.async_llm.AsyncLLM.outputs`."""
        ...


@dataclass(frozen=True)
class PlacedEngine:
    """The engine for a request that has its place among the open sequences already."""

    engine: Engine
    place: Place

    @property
    def model(self) -> ModelFacts:
        return self.engine.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    @property
    def inputs(self) -> InputProcessor:
        return self.engine.inputs

    def outputs(
        self,
        request: EngineRequest,
        prompt_text: str | None = None,
        place: Place | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        return self.engine.outputs(request, prompt_text, self.place if place is None else place)

"""What the server makes of its engine's facts, once for each that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.engine.ipc.wire import ModelFacts
from penstock.server.engine import Engine

T = TypeVar("T")


class OfModel(Generic[T]):
    """A value made of the facts of the model that is served: made anew when an engine with others,
    such as another context, is in the place of the one before."""

    def __init__(self, engine: Engine, make: Callable[[ModelFacts], T]) -> None:
        self._engine = engine
        self._make = make
        self._model = engine.model
        self._value = make(engine.model)

    def get(self) -> T:
        model = self._engine.model
        if model != self._model:
            self._value = self._make(model)
            self._model = model
        return self._value

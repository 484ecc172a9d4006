"""The outputs of ``LLM.embed``, ``LLM.classify`` and ``LLM.score``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.interface.messages import EngineRequest, SequenceUpdate
from penstock.pooling.pooler import EMBEDDING_DTYPE


@dataclass(frozen=True, eq=False)
class EmbeddingOutput:
    """The embedding of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    embedding: NDArray[np.float32]
    """``[dimensions]``; empty where ``error`` is set."""
    num_cached_tokens: int  # prompt tokens that came from the prefix cache
    error: str | None = None
    """Why there is no embedding; None if there is one."""

    @property
    def outputs(self) -> EmbeddingOutput:
        """This output: ``outputs.embedding`` is how vLLM's users find the embedding."""
        return self


def embedding_output(
    request: EngineRequest, prompt: str | None, end: SequenceUpdate
) -> EmbeddingOutput:
    """Make the output from the last update of a pooling request; ``prompt`` is its text, if it had
    one."""
    vector = np.frombuffer(end.embedding or b"", EMBEDDING_DTYPE)
    return EmbeddingOutput(
        request_id=request.request_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_token_ids,
        embedding=vector.astype(np.float32),
        num_cached_tokens=end.num_cached_tokens,
        error=end.error,
    )


@dataclass(frozen=True)
class ClassificationOutput:
    """What a model that classifies says of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    probs: list[float]
    """A value for each label, probabilities unless the model's labels are none; empty where
    ``error`` is set."""
    label: str | None
    """The name of the likeliest; None where ``error`` is set."""
    num_cached_tokens: int
    error: str | None = None

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    @property
    def outputs(self) -> ClassificationOutput:
        """This output, as :attr:`EmbeddingOutput.outputs`."""
        return self


@dataclass(frozen=True)
class ScoringOutput:
    """How well the texts of one pair fit."""

    score: float
    """NaN where ``error`` is set."""
    error: str | None = None

    @property
    def outputs(self) -> ScoringOutput:
        """This output, as :attr:`EmbeddingOutput.outputs`."""
        return self

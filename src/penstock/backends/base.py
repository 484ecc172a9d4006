"""What a backend gives the engine: an executor bound to one plan, one set of weights, one cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from penstock.engine.step import StepInput, StepResult
from penstock.sampling.sampler import Sampler


@dataclass(frozen=True)
class Limits:
    """How large a step may be; an executor allocates for these once, when it is bound."""

    num_blocks: int
    """KV blocks."""
    max_tokens: int
    """Token rows of a step."""
    max_logit_rows: int
    """Rows with logits in a step."""
    max_sequences: int
    threads: int
    cpus: tuple[int, ...] = ()
    """The CPU of each thread; empty: where the system puts them."""


class WeightSource(Protocol):
    """Canonical weights by name, read when asked for."""

    def get(self, name: str) -> np.ndarray:
        """The array in the checkpoint's dtype (float32, float16 or ml_dtypes.bfloat16), read-only.

        Usually a view of a memory-mapped file; do not hold on to it after packing.
        """
        ...

    def names(self) -> Iterable[str]: ...


class Executor(Protocol):
    """Runs steps. Created by a backend's ``bind``; not thread-safe.

    The cache's memory is part of the executor; block ids index it from 0 to ``num_blocks - 1``.
    """

    num_blocks: int

    def run(self, step: StepInput) -> StepResult:
        """Run one step and return its logits. Views in the result live until the next call."""
        ...

    def sampler(self) -> Sampler[Any]:
        """What chooses tokens from this executor's logits."""
        ...

    def close(self) -> None:
        """Release threads and memory; the executor cannot run afterwards."""
        ...

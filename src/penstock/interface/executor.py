"""What a backend gives the engine: an executor bound to one plan, one set of weights, one cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from numpy.typing import NDArray

from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampled, Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.interface.tuning import Tunable
from penstock.interface.weights import PackedRegions


@dataclass(frozen=True)
class Limits:
    """How large a step may be; an executor allocates for these once, when it is bound."""

    num_blocks: int
    """Number of blocks in the KV cache."""
    max_tokens: int
    """Maximum number of token rows in a step."""
    max_logit_rows: int
    """Maximum number of rows with logits in a step."""
    max_sequences: int
    threads: int
    cpus: tuple[int, ...] = ()
    """The CPU of each thread; empty: where the system puts them."""
    deterministic: bool = True
    """No row's result depends on other rows. Only the cuda backend can do without."""
    max_hidden_rows: int = 0
    """Maximum number of rows in a step that have logits or whose hidden states alone are returned;
    at least ``max_logit_rows``. 0 means ``max_logit_rows``."""
    rows_per_sequence: int = 1
    """Number of token rows per sequence in the steps that are run again and again: more than one
    with speculative decoding. Only speed depends on it."""
    trees: bool = False
    """Whether steps may hold draft trees. It affects only when the kernels for them are
    compiled."""

    @property
    def max_selected_rows(self) -> int:
        """Maximum number of rows in a step whose logits or hidden states are returned."""
        return max(self.max_logit_rows, self.max_hidden_rows)


class Executor(Protocol):
    """Runs steps. Created by a backend's ``bind``; not thread-safe.

    The cache's memory is part of the executor; block ids index it from 0 to ``num_blocks - 1``.
    """

    num_blocks: int

    @property
    def packed(self) -> PackedRegions | None:
        """The packed weights in memory; None if the backend packs nothing."""
        ...

    @property
    def tunable(self) -> Tunable | None:
        """The part of the executor that can be tuned; None if there is nothing, or nothing large
        enough."""
        ...

    def run(self, step: StepInput) -> StepResult:
        """Run one step and return its logits. Views in the result live until the next call."""
        ...

    def sampler(self) -> Sampler[Any]:
        """Return a sampler, which chooses tokens from this executor's logits."""
        ...

    def close(self) -> None:
        """Release threads and memory; the executor cannot run afterwards.

        Launches that were not waited for are abandoned."""
        ...


class PromptRows(NamedTuple):
    """Rows of logits from which log-probabilities of prompt tokens are wanted."""

    first_row: int
    """Row ``first_row + i`` of the step's logits predicts target ``i``."""
    targets: list[int]
    num_top: int
    """Number of most likely tokens to report besides each target."""


PromptReport = list[TokenLogprobs] | str
"""One entry per target token, or the reason why there is none (``Sampler.prompt_logprobs``), with
which the request fails."""


class Outcome(NamedTuple):
    """The results of a launched step, on the host."""

    sampled: Sampled
    """Tokens sampled from the rows that were launched. ``particular`` is not read: see
    ``launch``."""
    prompts: list[PromptReport]
    """One report for each of the PromptRows that were launched."""
    hidden: NDArray[Any] | None = None
    """Hidden states ``[H, hidden]`` of the step's ``hidden_rows``; None if it has none."""


class Launched(Protocol):
    """A step that runs, or will when those before it have."""

    def wait(self) -> Outcome:
        """Block until the step is done. Called once, in the order of the launches."""
        ...


class OverlappingExecutor(Executor, Protocol):
    """An executor that takes the next step while one runs: the engine then works ahead by one.

    An engine that speculates calls ``run`` instead, and never ``launch``.
    Steps run in the order of their launches, each seeing all that those before it wrote.
    """

    def runs_ahead(self, state: Any) -> bool:
        """Whether a sequence with this sampling state may be in the next launch before the host has
        waited for its token.

        This is false if the host needs the token before the next draw; such a sequence takes part
        in every other step.
        """
        ...

    def launch(
        self,
        step: StepInput,
        rows: Sequence[int],
        states: Sequence[Any],
        prompts: Sequence[PromptRows],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> Launched:
        """Start a step that samples ``states`` from these ``rows`` of its logits, without waiting
        for anything. At most one other launch may be outstanding.

        A negative ``~i`` in ``step.token_ids`` is the token that the launch before sampled for its
        ``states[i]``; if that failed, it is any token of the vocabulary. The executor passes each
        state its token (``append``). The step's arrays must not change any more, nor must
        ``masks``, which has one mask for each state whose options have a grammar. After an
        exception the executor can only be closed.
        """
        ...


class SelfFeedingExecutor(Executor, Protocol):
    """An executor whose next step can read the most likely tokens of the last one where they are: a
    caller that wants only those need not wait for each step before it starts the next."""

    def follow(self, step: StepInput) -> StepResult:
        """Start a step like ``run``, but without waiting for it: reading the result waits.

        A negative ``~i`` in ``step.token_ids`` is ``argmax[i]`` of the step before, which was also
        started by ``run`` or ``follow``. The result's ``argmax`` does not change when the next step
        begins.
        """
        ...


def self_feeding(executor: Executor) -> SelfFeedingExecutor | None:
    """The executor as one whose steps can follow each other, if they can."""
    return cast(SelfFeedingExecutor, executor) if hasattr(executor, "follow") else None


def overlapping(executor: Executor) -> OverlappingExecutor | None:
    """The executor as one that can be launched ahead, if it can."""
    return cast(OverlappingExecutor, executor) if hasattr(executor, "launch") else None

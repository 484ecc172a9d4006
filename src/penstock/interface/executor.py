"""What a backend gives the engine: an executor bound to one plan, one set of weights, one cache.

All that is run goes one way, on any backend, of the target and of what drafts for it::

    pending = executor.submit(step, sampling)  # a step, and what is drawn from its logits
    outcome = pending.wait()

What an executor can do beyond that is data (:class:`Capabilities`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.interface.adapters import AdapterMemory
from penstock.interface.blocks import BlockIO, BlockMover
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import MaskSource
from penstock.interface.sampler import Sampled, Sampler, SamplingState
from penstock.interface.step import StepInput, StepResult
from penstock.interface.tuning import Tunable
from penstock.interface.weights import PackedRegions


@dataclass(frozen=True)
class Limits:
    """How large a step may be; an executor allocates for these once, when it is bound."""

    num_blocks: int
    """Number of blocks in the KV cache, which all groups of layers share."""
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
    blocks_are_put: bool = False
    """Whether blocks that were computed before are put into the cache between steps
    (:class:`~penstock.interface.blocks.BlockIO`). It affects only when memory is made ready."""
    num_states: int = 0
    """Number of state slots (``StepInput.states``); 0 for a model whose layers keep no states."""
    state_log: int = 0
    """Number of tokens at most, of those last computed, that may be taken back from a state: rows
    of the log in each slot. 0: a step takes back none."""

    @property
    def max_selected_rows(self) -> int:
        """Maximum number of rows in a step whose logits or hidden states are returned."""
        return max(self.max_logit_rows, self.max_hidden_rows)


@dataclass(frozen=True)
class Capabilities:
    """What an executor can do besides running one step after the other."""

    depth: int = 1
    """Number of submissions with a ``Sampling`` that may be outstanding: 2 where the next waits
    behind the one that runs, or as many as there are stages that work at once. Submissions without
    one are not counted."""
    placeholders: bool = False
    """Whether ``~i`` in ``StepInput.token_ids`` stands for what the submission before chose: for
    its sample ``i``, or, where it had no ``Sampling``, for ``argmax[i]``."""
    draws_ahead: bool = False
    """Whether any sequence may be sampled again before the host was told its token. If not, only
    one whose sampling state is ``greedy`` may. Neither may one with a grammar."""
    late_masks: bool = False
    """Whether masks are taken when the logits are there, and a row whose mask is late then draws
    nothing (``StepOutcome.late``). If not, all must be there when a step is submitted, or the host
    asks for its logits and draws."""
    most_logprobs: int | None = None
    """How many of a row's likeliest tokens its sampler can report; None: any number. Requests for
    log-probabilities stay below (``MAX_LOGPROBS``), and beam searches may ask for more."""


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


class Sampling(msgspec.Struct, frozen=True):
    """What a step's rows are for: what is drawn from its logits, and what else is reported of them.

    Where drafts are verified, no row is drawn from by the executor: which row comes next depends on
    what was drawn before. The host then asks for ``logits``, and draws with ``Executor.sampler``
    from the rows that it needs. An executor that verifies drafts itself would be given them here,
    beside the first row of each in ``rows``.
    """

    rows: Sequence[int] = ()
    """Rows of the step's logits that are drawn from; several may be the same."""
    states: Sequence[SamplingState] = ()
    """The sampling state, for each of ``rows``, of its sequence, made by ``Executor.sampler``. The
    executor tells it the token (``SamplingState.append``): no one else must."""
    masks: MaskSource | None = None
    """The masks of the states whose options have a grammar; None if no state's have."""
    prompts: Sequence[PromptRows] = ()
    features: bool = False
    """Whether ``StepOutcome.features`` are wanted."""
    logits: bool = False
    """Whether ``StepOutcome.result`` is wanted; then ``rows`` is empty."""


_NOTHING = Sampled([])


class StepOutcome(msgspec.Struct, frozen=True):
    """The results of a step, on the host.

    Arrays may be views that the next submission overwrites; where ``Capabilities.depth`` is more
    than 1, only ``result`` is, until the next submission is waited for.
    """

    sampled: Sampled = _NOTHING
    """Tokens drawn from ``Sampling.rows``. ``not_plain`` is not read: states know their tokens."""
    late: frozenset[int] = frozenset()
    """Indices into ``Sampling.rows`` that drew nothing, since their masks were not ready."""
    prompts: Sequence[PromptReport] = ()
    """One report for each of ``Sampling.prompts``."""
    hidden: NDArray[Any] | None = None
    """Hidden states ``[H, hidden]`` of the step's ``hidden_rows``; None if it has none."""
    features: NDArray[Any] | None = None
    """``[R + H, F]``, what a head that drafts is given of the rows: what the plan taps
    (``StepResult.taps``), or else the hidden states. None if not wanted."""
    result: StepResult | None = None
    """Everything, for ``Sampling.logits`` or of a step without ``Sampling``. Valid until the next
    submission, but for its ``argmax`` where ``Capabilities.placeholders`` is set."""


class Pending(Protocol):
    """A step that was submitted: it runs, or will when those before it have, or is over."""

    def wait(self) -> StepOutcome:
        """Block until the step is done. Called once, in the order of the submissions."""
        ...


class Executor(Protocol):
    """Runs steps. Created by a backend's ``bind``; not thread-safe.

    The cache's memory is part of the executor; block ids index it from 0 to ``num_blocks - 1``.
    """

    num_blocks: int
    capabilities: Capabilities

    @property
    def packed(self) -> PackedRegions | None:
        """The packed weights in memory; None if the backend packs nothing."""
        ...

    @property
    def tunable(self) -> Tunable | None:
        """The part of the executor that can be tuned; None if there is nothing, or nothing large
        enough."""
        ...

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Pending:
        """Start a step, and then what ``sampling`` asks for; without it, nothing is drawn.

        Steps run in the order of their submissions, each seeing all that those before it wrote.
        The step's arrays must not change before it is waited for. What a placeholder stands for,
        if drawing it failed, is any token of the vocabulary. Raises ValueError on a step that is
        malformed or exceeds the limits of ``bind``, or whose masks are late where they may not be,
        before anything is written; RuntimeError after :meth:`close`. After any other exception the
        executor can only be closed.
        """
        ...

    @property
    def blocks(self) -> BlockIO | BlockMover | None:
        """What reads and writes the blocks of the cache as bytes, between steps or beside them;
        None where nothing does yet."""
        ...

    @property
    def adapters(self) -> AdapterMemory | None:
        """The slots of adapters, which are written between submissions; None where the plan has
        room for none."""
        ...

    @property
    def sampler(self) -> Sampler[Any]:
        """What chooses tokens from this executor's logits: one, whoever asks."""
        ...

    def close(self) -> None:
        """Release threads and memory; the executor cannot run afterwards.

        Submissions that were not waited for are abandoned."""
        ...


class OpTime(NamedTuple):
    """What an op took."""

    seconds: float
    waiting: float
    """The part of ``seconds`` that the mean thread waited for the last one."""
    for_ranks: float = 0.0
    """The part of ``seconds`` that the first thread waited for other ranks."""


@runtime_checkable
class Profiling(Protocol):
    """An executor that can time its ops."""

    def profile(self, step: StepInput) -> tuple[StepResult, Sequence[OpTime]]:
        """Run a step from which nothing is drawn; return what it gives, and what each op of the
        plan took."""
        ...


@runtime_checkable
class Spread(Protocol):
    """An executor of several processes, others of which may fail while no step runs."""

    def failure(self) -> PenstockError | None:
        """Return the error with which one has failed, if one has. Any thread may ask."""
        ...


def failure_of(executor: Executor) -> PenstockError | None:
    """Return why an executor cannot go on, where that is known though no step runs."""
    return executor.failure() if isinstance(executor, Spread) else None


class _Rows(Protocol):
    def __getitem__(self, rows: slice, /) -> Any: ...


_Array = TypeVar("_Array", bound=_Rows)


def picked(
    step: StepInput, sampling: Sampling, hidden: _Array, taps: _Array | None
) -> tuple[_Array | None, _Array | None]:
    """Return ``StepOutcome.hidden`` and ``.features`` of what a step computed.

    ``hidden`` and ``taps``, arrays on the host or a device, have a row for each of the step's
    ``logit_rows``, then for each of its ``hidden_rows``, and then any of padding.
    """
    rows = len(step.logit_rows)
    end = rows + len(step.hidden_rows)
    source = hidden if taps is None else taps
    return hidden[rows:end] if end > rows else None, source[:end] if sampling.features else None


def run(executor: Executor, step: StepInput) -> StepResult:
    """Submit a step from which nothing is drawn, and wait for it. Views in the result live until
    the next submission."""
    result = executor.submit(step).wait().result
    assert result is not None, "a step without Sampling returns everything"
    return result

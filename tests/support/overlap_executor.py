"""Executors for tests of steps that are launched one behind the other.

``HashExecutor`` has no weights: its logits are a hash of what it reads in the cache, so that a slot
read too early, too late or by the wrong sequence changes everything after it. ``Deferred`` makes
an overlapping executor of any other: it does nothing before it is waited for, which is as late as
a device may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import RequestError
from penstock.interface.executor import Executor, Outcome, PromptReport, PromptRows
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.reference import NumpySampler
from support.fake_model import FakeModel, as_hidden, resolved


class HashExecutor:
    """Logits [R, vocab] that depend on every key before a row; NaN behind a ``poison`` token.

    Hidden states of one component do, too.
    """

    packed = None
    tunable = None

    def __init__(self, num_blocks: int, vocab: int, poison: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.model = FakeModel(BLOCK_SIZE)
        self._vocab = vocab
        self._poison = poison

    def run(self, step: StepInput) -> StepResult:
        assert step.token_ids.min() >= 0
        assert step.token_ids.max() < self._vocab
        hashes = self.model.run(step)
        rows = len(step.logit_rows)
        logits = np.empty((rows, self._vocab), np.float32)
        for row, value in enumerate(hashes[:rows]):
            draws = np.random.default_rng(value % 2**64)
            logits[row] = draws.standard_normal(self._vocab, np.float32) * 2
            if step.token_ids[step.logit_rows[row]] == self._poison:
                logits[row] = np.nan
        return StepResult(logits, logits.argmax(axis=1).astype(np.int32), as_hidden(hashes))

    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...


@dataclass
class Deferred:
    """Overlaps steps of ``inner``.

    ``knows_states``: like a sampler on the device, whose states need not be told by the host
    before the next draw. Without, only greedy sequences run ahead.
    """

    inner: Executor
    knows_states: bool = True
    failed_token: int = 0
    """What an awaited token is that could not be sampled."""
    launches: int = 0
    rows: int = 0  # sampled ones
    behind: int = 0
    """Launches while another was not waited for."""
    pending: list[_Pending] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_blocks = self.inner.num_blocks
        self.packed = self.inner.packed
        self.choose: Sampler[Any] = self.inner.sampler()

    def run(self, step: StepInput) -> StepResult:
        raise AssertionError("the engine launches")

    def sampler(self) -> Sampler[Any]:
        return self.choose

    def runs_ahead(self, state: Any) -> bool:
        return self.knows_states or state.greedy

    def launch(
        self,
        step: StepInput,
        rows: Sequence[int],
        states: Sequence[Any],
        prompts: Sequence[PromptRows],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> _Pending:
        assert len(self.pending) < 2, "a third launch"
        for state in states:
            if self.pending and not self.runs_ahead(state):
                assert state not in self.pending[-1].states, "it must be told first"
        self.launches += 1
        self.behind += bool(self.pending)
        self.rows += len(rows)
        launch = _Pending(self, step, rows, states, prompts, masks)
        self.pending.append(launch)
        return launch

    def close(self) -> None:
        self.pending.clear()
        self.inner.close()


class _Pending:
    def __init__(
        self,
        owner: Deferred,
        step: StepInput,
        rows: Sequence[int],
        states: Sequence[Any],
        prompts: Sequence[PromptRows],
        masks: Sequence[TokenMask | None] | None,
    ) -> None:
        self._owner, self._step, self.states, self._prompts = owner, step, states, prompts
        self._rows, self._masks = list(rows), masks
        self._arrays = {name: getattr(step, name).copy() for name in step.__dataclass_fields__}

    def wait(self) -> Outcome:
        owner, step, states = self._owner, self._step, self.states
        assert owner.pending.pop(0) is self, "waited for out of order, or twice"
        for name, array in self._arrays.items():
            assert (getattr(step, name) == array).all(), f"{name} changed in flight"
        result = owner.inner.run(resolved(step, owner.previous))
        sampled = owner.choose.sample(result, self._rows, states, self._masks)
        owner.previous = [
            owner.failed_token if i in sampled.errors else token
            for i, token in enumerate(sampled.token_ids)
        ]
        for i in sampled.particular:
            if i not in sampled.errors:
                states[i].append(sampled.token_ids[i])
        hidden = None
        if len(step.hidden_rows):
            assert result.hidden is not None
            hidden = result.hidden[len(step.logit_rows) :].copy()
        return Outcome(sampled, [self._report(result, each) for each in self._prompts], hidden)

    def _report(self, result: StepResult, wanted: PromptRows) -> PromptReport:
        rows = result.logits[wanted.first_row : wanted.first_row + len(wanted.targets)]
        try:
            return self._owner.choose.prompt_logprobs(rows, wanted.targets, wanted.num_top)
        except RequestError as error:
            return str(error)

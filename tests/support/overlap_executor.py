"""Executors for tests of steps that are submitted one behind the other.

``HashExecutor`` has no weights: its logits are a hash of what it reads in the cache, so that a slot
read too early, too late or by the wrong sequence changes everything after it. ``Deferred`` makes
an executor of several submissions of any other: it does nothing before it is waited for, which is
as late as a device may be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.executor import Capabilities, Sampling, StepOutcome
from penstock.interface.host_executor import HostExecutor
from penstock.interface.mask import StepMasks
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.reference import NumpySampler
from support.fake_model import FakeModel, Windows, as_hidden, resolved
from support.fake_states import FakeStates
from support.kv_tables import arrays_of


class HashExecutor(HostExecutor):
    """Logits [R, vocab] that depend on every key before a row; NaN behind a ``poison`` token.

    Hidden states of one component do, too.
    """

    def __init__(
        self,
        num_blocks: int,
        vocab: int,
        poison: int | None = None,
        windows: Windows = (None,),
        states: FakeStates | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.model = FakeModel(BLOCK_SIZE, windows=windows, states=states)
        self._vocab = vocab
        self._poison = poison
        self.rows_run = 0
        """Token rows that were run."""

    def run(self, step: StepInput) -> StepResult:
        assert step.token_ids.min() >= 0
        assert step.token_ids.max() < self._vocab
        self.rows_run += step.num_tokens
        hashes = self.model.run(step)
        rows = len(step.logit_rows)
        logits = np.empty((rows, self._vocab), np.float32)
        for row, value in enumerate(hashes[:rows]):
            draws = np.random.default_rng(value % 2**64)
            logits[row] = draws.standard_normal(self._vocab, np.float32) * 2
            if step.token_ids[step.logit_rows[row]] == self._poison:
                logits[row] = np.nan
        return StepResult(logits, logits.argmax(axis=1).astype(np.int32), as_hidden(hashes))

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...


@dataclass
class Deferred:
    """Overlaps steps of ``inner``.

    ``draws_ahead``: like a sampler on the device, whose states need not be told by the host
    before the next draw. Without, only greedy sequences run ahead.
    """

    inner: HostExecutor
    draws_ahead: bool = True
    depth: int = 2
    placeholders: bool = True
    """If not, as of stages of a pipeline, a sequence is in one submission at a time, as long as its
    token is not known."""
    failed_token: int = 0
    """What a placeholder stands for that could not be sampled."""
    submissions: int = 0
    rows: int = 0  # sampled ones
    behind: int = 0
    """Submissions while another was not waited for."""
    verified: int = 0
    """Submissions of which the host asked for the logits."""
    pending: list[DeferredStep] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    closed: bool = False

    packed = None
    tunable = None
    adapters = None
    blocks = None
    adapters = None

    def __post_init__(self) -> None:
        self.num_blocks = self.inner.num_blocks
        self.capabilities = Capabilities(
            self.depth, self.placeholders, draws_ahead=self.draws_ahead and self.placeholders
        )
        self.choose: Sampler[Any] = self.inner.sampler

    @property
    def sampler(self) -> Sampler[Any]:
        return self.choose

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> DeferredStep:
        sampled = [each for each in self.pending if each.sampling is not None]
        assert sampling is None or len(sampled) < self.depth, "one submission too many"
        assert self.placeholders or step.token_ids.min() >= 0
        assert not any(each.sampling.logits for each in sampled if each.sampling), "not verified"
        if sampling is not None:
            assert len(sampling.rows) == len(sampling.states)
            assert not (sampling.logits and sampling.rows)
            for state in sampling.states:
                if not self.capabilities.draws_ahead and not (self.placeholders and state.greedy):
                    for before in sampled:
                        assert before.sampling is not None
                        assert state not in before.sampling.states, "it must be told first"
            self.verified += sampling.logits
            self.rows += len(sampling.rows)
        self.submissions += 1
        self.behind += bool(self.pending)
        self.pending.append(DeferredStep(self, step, sampling))
        return self.pending[-1]

    def close(self) -> None:
        self.closed = True
        self.pending.clear()
        self.inner.close()


class DeferredStep:
    """Does everything when it is waited for, but for the masks, which a device is sent before."""

    def __init__(self, owner: Deferred, step: StepInput, sampling: Sampling | None) -> None:
        self._owner, self.step = owner, step
        if sampling is not None and sampling.masks is not None:
            masks = sampling.masks.take()
            assert masks.in_time is masks.masks
            sampling = msgspec.structs.replace(sampling, masks=_Taken(masks))
        self.sampling = sampling
        self._arrays = {name: array.copy() for name, array in arrays_of(step).items()}

    def wait(self) -> StepOutcome:
        owner, step = self._owner, self.step
        assert owner.pending.pop(0) is self, "waited for out of order, or twice"
        now = arrays_of(step)
        for name, array in self._arrays.items():
            assert (now[name] == array).all(), f"{name} changed in flight"
        known = resolved(step, owner.previous)
        outcome = owner.inner.submit(known, self.sampling).wait()
        if self.sampling is None:
            assert outcome.result is not None
            owner.previous = outcome.result.argmax.tolist()
        else:
            owner.previous = [
                owner.failed_token if i in outcome.sampled.errors else token
                for i, token in enumerate(outcome.sampled.token_ids)
            ]
        return outcome


class _Taken(NamedTuple):
    masks: StepMasks

    def take(self) -> StepMasks:
        return self.masks

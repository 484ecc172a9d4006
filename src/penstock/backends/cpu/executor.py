"""Runs a native executor as ``interface/executor.py`` asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from numpy.typing import NDArray

from penstock.backends.cpu.adapters import AdapterTables
from penstock.backends.cpu.blocks import CpuBlocks
from penstock.backends.cpu.interface import NativeExecutor, StateArrays, StepArrays
from penstock.backends.cpu.native import load
from penstock.backends.cpu.rope_tables import RopeTables
from penstock.backends.cpu.sampler import NativeSampler
from penstock.backends.cpu.tune import ProductTuner
from penstock.interface.executor import OpTime
from penstock.interface.host_executor import HostExecutor
from penstock.interface.step import Float32s, Int32s, StepInput, StepResult
from penstock.interface.weights import PackedRegions

R = TypeVar("R")


@dataclass(frozen=True)
class ResultViews:
    """Views of the arena in which the native executor leaves what a step returns.

    Each has the maximum number of selected rows, of which a step uses the first.
    """

    logits: Float32s
    """``[rows, vocabulary]``."""
    argmax: Int32s
    """``[rows]``."""
    hidden: NDArray[Any] | None
    """``[rows, hidden size]``, float32 or bfloat16; None of a stage that hands something on."""
    taps: Float32s | None
    """``[rows, columns]``; None if the plan taps no layer."""
    more_logits: tuple[Float32s, ...]
    """Each ``[rows, outputs]``, of heads that draft several tokens."""
    leaving: tuple[tuple[NDArray[Any], int], ...] = ()
    """Each ``[times * tokens, columns]`` and times, of a stage that hands something on; it has no
    logits."""

    def first(self, rows: int, selected: int, tokens: int) -> StepResult:
        """The result of a step with ``rows`` rows of logits, ``selected`` of hidden states, and
        ``tokens`` of all."""
        return StepResult(
            logits=self.logits[:rows],
            argmax=self.argmax[:rows],
            hidden=None if self.hidden is None else self.hidden[:selected],
            taps=None if self.taps is None else self.taps[:selected],
            more_logits=tuple(logits[:rows] for logits in self.more_logits),
            leaving=tuple(buffer[: times * tokens] for buffer, times in self.leaving),
        )


class CpuExecutor(HostExecutor):
    """Runs steps in one native call each, with the GIL released. Made by ``cpu.bind.bind``."""

    def __init__(
        self,
        native: NativeExecutor,
        isa: str,
        num_blocks: int,
        results: ResultViews,
        packed: PackedRegions,
        tunable: ProductTuner | None = None,
        feature_size: int = 0,
        rope_tables: RopeTables | None = None,
        adapters: AdapterTables | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.isa = isa
        self.packed = packed
        self.tunable = tunable
        self.adapters = adapters
        self._native = native
        self._results = results
        self._feature_size = feature_size
        self._rope_tables = rope_tables

    @property
    def weight_bytes(self) -> int:
        """Memory that packed weights and tables take."""
        return self._native.weight_bytes

    def run(self, step: StepInput) -> StepResult:
        """Run one step. The results are views that the next step overwrites.

        Raises ValueError on a step that is malformed or exceeds the limits of ``bind``, before
        anything is written; RuntimeError after :meth:`close`.
        """
        self._call(self._native.run, step)
        return self._result(step)

    def profile(self, step: StepInput) -> tuple[StepResult, list[OpTime]]:
        """Run one step as :meth:`run` does, and return what each op took, in the order of
        ``op_kinds``."""
        times = self._call(self._native.profile, step)
        return self._result(step), [OpTime(*each) for each in times]

    @property
    def op_kinds(self) -> list[str]:
        """The kinds of the ops, in the order of the plan."""
        return self._native.op_names

    def _call(self, call: Callable[..., R], step: StepInput) -> R:
        step.check_features(self._feature_size)
        features = step.features if self._feature_size else None
        adapters = step.adapters if len(step.adapters) else None
        try:
            return call(*_arrays(step), features=features, states=_states(step), adapters=adapters)
        except IndexError:
            self._reach(step)
            return call(*_arrays(step), features=features, states=_states(step), adapters=adapters)

    def _result(self, step: StepInput) -> StepResult:
        rows = len(step.logit_rows)
        return self._results.first(rows, rows + len(step.hidden_rows), step.num_tokens)

    def _reach(self, step: StepInput) -> None:
        """Fill rotary tables for the step's positions, which lie beyond them."""
        assert self._rope_tables is not None
        self._rope_tables.reach(int(step.positions.max()) + 1)

    @cached_property
    def blocks(self) -> CpuBlocks:
        """Not to be used after :meth:`close`."""
        return CpuBlocks(self._native)

    @cached_property
    def sampler(self) -> NativeSampler:
        """Runs on this executor's threads; not while a step does, nor after :meth:`close`."""
        return NativeSampler(load(self.isa), self._native, self._results.logits.shape[1])

    def close(self) -> None:
        """End the threads and free weights and cache. Results already returned stay readable."""
        self._native.close()


def _arrays(step: StepInput) -> StepArrays:
    return (
        step.token_ids,
        step.positions,
        step.query_starts,
        step.context_lens,
        step.groups,
        step.logit_rows,
        step.hidden_rows,
        step.block_copies,
        step.tree_parents,
        step.slot_moves,
    )


def _states(step: StepInput) -> StateArrays | None:
    states = step.states
    if states is None:
        return None
    return states.slots, states.seen, states.tentative, states.snapshots, states.copies

"""The start of one executor: restored from an engine artifact, or read, rounded and packed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock.artifact.format import Artifact, BuiltLengths
from penstock.artifact.session import ArtifactSession, Keeping, Note
from penstock.backends.registry import backend
from penstock.engine.engine_plan import EnginePlan, rank_limits, step_limits
from penstock.engine.plan_weights import Mark, open_plan_weights
from penstock.errors import ArtifactError
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor, Limits
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.interface.tuning import Tuning
from penstock.plan.plan import Plan
from penstock.plan.ranks import own_key_columns
from penstock.plan.weight_bytes import weight_bytes
from penstock.resolved_config import ResolvedConfig
from penstock.weights.counted import CountedWeights
from penstock.weights.measured import MeasuredWeights
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured

_RESTORING: Final = "packed weights of before"


@dataclass(frozen=True)
class Start:
    """How one process, which may be one of several ranks, makes its executor.

    ``keeping`` says whether packed weights are kept as an artifact, as in ``loader.load``.
    """

    engine_plan: EnginePlan
    files: ModelFiles | None
    mark: Mark
    note: Note
    keeping: Keeping
    progress: ProgressCallback = no_progress
    seat: RankSeat | None = None
    """The place in a group of ranks, where the executor is one rank's."""

    def restored(self) -> Executor | None:
        """Return the executor with weights restored from the artifact that fits; None where there
        is none, or it is damaged. Raises what binding does, and ArtifactError if the artifact is
        "always" to be kept and cannot be changed."""
        with self._artifacts.take(self._restoring) as kept:
            if kept is None:
                return None
            binds = backend(self._config.backend)
            try:
                executor = binds.bind(self.plan, kept, self._limits, self.seat)
            except ArtifactError as error:
                self._artifacts.is_damaged(error)
                return None
            with closed_on_error(executor):
                self.mark("restore weights")
                self._artifacts.is_restored(kept)
                self._tune_restored(executor, kept)
                if self.keeping == "always":
                    self._artifacts.set_lengths(kept, _lengths(self._config))
                return executor

    def executor(self, measure: Callable[[], Measured | None]) -> Executor:
        """Return the executor of a process that shares the weights with no other, restored or
        packed. ``measure`` returns what a text says of the model, and is called where it packs."""
        executor = self.restored()
        if executor is not None:
            return executor
        self.require_room()
        began = time.monotonic()
        return self.packed(measure(), began)

    def require_room(self) -> None:
        """Raise ArtifactError where what all ranks will pack has to be kept and finds no room."""
        if self.keeping == "always":
            self._artifacts.require_room()

    def packed(self, measured: Measured | None, began: float) -> Executor:
        """Return the executor with weights read from the checkpoint and packed, and keep these if
        that is worthwhile.

        ``measured`` is what a text says of the model, where that is asked for, and ``began`` the
        monotonic time at which all this work began. Raises WeightError or ConfigError, or
        ArtifactError if the weights cannot be kept as they must.
        """
        config = self._config
        opened = {**self.engine_plan.of_all_stages, **self.plan.weights}
        weights, warning = open_plan_weights(
            replace(self.engine_plan, plan=replace(self.plan, weights=opened)),
            self.files,
            {} if measured is None else measured.inputs,
        )
        if self.progress is not no_progress:
            weights = CountedWeights(
                weights,
                self.plan.weights,
                lambda part: self.progress("weights", part, self._num_bytes),
            )
        if measured is not None and measured.keys:
            weights = MeasuredWeights(weights, self._own_keys(measured))
        self.mark("open weights")
        executor = backend(config.backend).bind(self.plan, weights, self._limits, self.seat)
        with closed_on_error(executor):
            self.mark("pack weights")
            if (odd := warning()) is not None:
                self.note(logging.WARNING, f"{config.model_path}: {odd}")
            packed_in = time.monotonic() - began
            self.progress("tuning, and keeping packed weights", 1.0, 0)
            lengths = _lengths(config) if self.keeping == "always" else None
            if self._artifacts.keep(
                executor.packed, packed_in, self.keeping, lambda: self._measure(executor), lengths
            ):
                self.mark("keep artifact")
            return executor

    @property
    def plan(self) -> Plan:
        """What the executor runs."""
        return self.engine_plan.own_plan(self._rank)

    @property
    def _config(self) -> ResolvedConfig:
        return self.engine_plan.config

    @property
    def _rank(self) -> int:
        return 0 if self.seat is None else self.seat.collective.rank

    @property
    def _limits(self) -> Limits:
        if self.seat is None:
            return step_limits(self.engine_plan)
        return rank_limits(self.engine_plan, self._rank)

    @cached_property
    def _artifacts(self) -> ArtifactSession:
        stage = self.engine_plan.stage
        return ArtifactSession.of(
            *(self._config, self.plan, self.note, self.files, self._rank),
            0 if stage is None else stage.number,
        )

    @cached_property
    def _num_bytes(self) -> int:
        return 0 if self.progress is no_progress else weight_bytes(self.plan)

    def _restoring(self, part: float) -> None:
        self.progress(_RESTORING, part, self._num_bytes)

    def _own_keys(self, measured: Measured) -> dict[str, NDArray[np.float32]]:
        """What the process's keys are centered and scaled by."""
        whole, stage = self.engine_plan.plan, self.engine_plan.stage
        # A stage counts cached layers from its own first.
        first = 0 if stage is None else stage.kv_first
        keys = {
            each: measured.keys[replace(each, layer=each.layer + first).name]
            for each in whole.key_columns
        }
        if self.seat is None:
            return {each.name: values for each, values in keys.items()}
        world = self.seat.collective.world
        return {
            each.name: own_key_columns(whole, each, values, self._rank, world)
            for each, values in keys.items()
        }

    def _tune_restored(self, executor: Executor, kept: Artifact) -> None:
        """Tune products by the artifact's measurements, or measure where the results can be
        kept."""
        tunable = executor.tunable
        if tunable is None or self._artifacts.tune(kept, tunable):
            return
        if self.keeping == "never" or not self._artifacts.takes_tuning(kept):
            return
        tuning = self._measure(executor)
        if tuning is not None:
            self._artifacts.add_tuning(kept, tuning)

    def _measure(self, executor: Executor) -> Tuning | None:
        if executor.tunable is None:
            return None
        tuning = executor.tunable.measure()
        self.mark("tune products")
        return tuning


def environment_of_rank(engine_plan: EnginePlan, rank: int) -> Mapping[str, str]:
    """Return the environment of the process in which a rank starts, one that is not the first."""
    return backend(engine_plan.config.backend).environment_of_rank(rank, os.environ)


@contextmanager
def closed_on_error(executor: Executor) -> Iterator[None]:
    """Close the executor if what follows fails: its threads and memory would outlive the start."""
    try:
        yield
    except BaseException:
        executor.close()
        raise


def _lengths(config: ResolvedConfig) -> BuiltLengths | None:
    """What an engine that is built now is built for."""
    if config.max_input_len is None and config.max_output_len is None:
        return None
    return BuiltLengths(config.max_input_len, config.max_output_len)

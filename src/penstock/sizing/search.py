"""The search for configurations that serve a load within its objectives.

A configuration is an accelerator, how many of them share a model (ranks and stages), the types of
weights and of keys and values, and how many such replicas there are. Of each the number of replicas
is the least that meets the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.cache.geometry import KvDType, sequence_blocks
from penstock.dtypes import QuantizationName
from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Attained, DeviceKind, Network
from penstock.sizing.configuration import MEMORY_USED, Configuration, Room
from penstock.sizing.fabric import Fabric
from penstock.sizing.model import Precision, SizedModel, SizedPlan
from penstock.sizing.parallel import Exchange, Parallelism
from penstock.sizing.pipeline import Part, PipelineTime
from penstock.sizing.serving import Estimate, Load, Slo, Workload, estimate

STEP_TOKENS: dict[DeviceKind, int] = {"gpu": 2048, "cpu": 512}
"""Tokens of a step at most: the backends' defaults."""

_STAGES = (1, 2, 4, 8, 16, 32)
"""Numbers of stages that are tried where none is asked for, up to the first that holds the
model."""
_MOST_REPLICAS = 4096


@dataclass(frozen=True)
class Choices:
    """What a search may choose from; one of each is no choice."""

    accelerators: Sequence[Accelerator]
    weights: Sequence[QuantizationName] = ("none", "int8", "int4")
    kv: Sequence[KvDType | None] = (None,)
    """None: the type of the weights."""
    tensor: Sequence[int] = (1, 2, 4, 8)
    pipeline: Sequence[int] | None = None
    """None: as few stages as hold the model."""
    replicas: int | None = None
    exchange: Exchange = "gather"
    network: Network | None = None
    """What joins machines; None: a replica has one."""
    attained: Attained | None = None
    """None: each device's own."""
    step_tokens: int | None = None


@dataclass(frozen=True)
class Demanded:
    """The load to serve: ``concurrency`` requests are always open."""

    workload: Workload
    concurrency: int
    slo: Slo


@dataclass
class Search:
    """Tries configurations of one model for one load."""

    model: SizedModel
    demanded: Demanded
    choices: Choices
    _loads: dict[int, Load] = field(default_factory=dict)

    def all(self) -> list[Configuration]:
        """Every configuration that fits, whether it meets the SLO or not.

        Raises ConfigError where the model fits nowhere.
        """
        found = [c for device in self.choices.accelerators for c in self._of(device)]
        if not found:
            raise ConfigError(self._why_nothing_fits())
        return found

    def _of(self, device: Accelerator) -> Iterator[Configuration]:
        for weights in self.choices.weights:
            for kv in self.choices.kv:
                precision = Precision(weights, kv or self.model.spec.dtype)
                for parallel in self._shapes(device, precision):
                    made = self._configured(device, precision, parallel)
                    if made is not None:
                        yield made

    def _shapes(self, device: Accelerator, precision: Precision) -> Iterator[Parallelism]:
        for tensor in self.choices.tensor:
            for pipeline in self.choices.pipeline or _STAGES:
                parallel = Parallelism(tensor, pipeline, self.choices.exchange)
                try:
                    self.fabric(device).check(parallel, device.name)
                    fits = self._room(device, precision, parallel).requests >= 1
                except ConfigError:
                    if self._only:
                        raise
                    break
                if fits:
                    yield parallel
                    if self.choices.pipeline is None:
                        break

    @property
    def _only(self) -> bool:
        """Whether one number of ranks and stages was asked for, on one device."""
        several = (self.choices.accelerators, self.choices.tensor, self.choices.pipeline or ())
        return all(len(each) == 1 for each in several)

    def fabric(self, device: Accelerator) -> Fabric:
        """What joins devices."""
        return Fabric.of(device, self.choices.network)

    def _plan(self, device: Accelerator, precision: Precision) -> SizedPlan:
        return self.model.plan(device.kind, precision, self.budget(device))

    def budget(self, device: Accelerator) -> int:
        """Tokens of a step at most."""
        return max(self.choices.step_tokens or STEP_TOKENS[device.kind], self._least_budget)

    @property
    def _least_budget(self) -> int:
        return 2 + self.demanded.workload.speculation.tokens

    def _parts(
        self, device: Accelerator, precision: Precision, parallel: Parallelism
    ) -> tuple[SizedPlan, ...]:
        return self.model.parts(device.kind, precision, self.budget(device), parallel)

    def _room(self, device: Accelerator, precision: Precision, parallel: Parallelism) -> Room:
        """Raises ConfigError where the model cannot be divided so."""
        windows = self._plan(device, precision).footprint.windows
        pages = sequence_blocks(windows, self.demanded.workload.tokens)
        rooms = [
            Room(
                device.memory_bytes,
                its.weights,
                its.activations,
                pages * its.page_bytes + its.state_bytes,
            )
            for its in (part.footprint for part in self._parts(device, precision, parallel))
        ]
        return min(rooms, key=lambda room: room.requests)

    def _configured(
        self, device: Accelerator, precision: Precision, parallel: Parallelism
    ) -> Configuration | None:
        # What a step may have is what all steps in flight have together.
        budget = max(-(-self.budget(device) // parallel.pipeline), self._least_budget)
        load = self._loads.setdefault(budget, Load(self.demanded.workload, budget))
        time = self.time(device, precision, parallel)
        room = self._room(device, precision, parallel)

        def flying(concurrency: int) -> int:
            return min(parallel.pipeline, concurrency, room.requests)

        def at(concurrency: int) -> Estimate:
            steps = flying(concurrency)
            return estimate(time.flying(steps), load, concurrency, room.requests, steps)

        wanted, slo = self.demanded.concurrency, self.demanded.slo
        if self.choices.replicas is not None:
            replicas = self.choices.replicas
            alone = at(-(-wanted // replicas))
            full = alone
        else:
            most = most_served(lambda n: slo.excess(at(n)) <= 1.0, room.requests)
            full = at(max(most, 1))
            replicas = min(-(-wanted // max(most, 1)), _MOST_REPLICAS)
            alone = at(-(-wanted // replicas))
        if not math.isfinite(alone.latency):
            return None
        time = time.flying(flying(alone.concurrency))
        return Configuration(
            device,
            precision,
            parallel,
            self.fabric(device).machines(parallel),
            replicas,
            room,
            alone,
            full,
            time.bounds(alone.decode),
            time.bounds(alone.prefill),
            slo.excess(alone),
        )

    def time(
        self, device: Accelerator, precision: Precision, parallel: Parallelism
    ) -> PipelineTime:
        """The time of steps on ``device``."""
        fabric, spec = self.fabric(device), self.model.spec
        parts = self._parts(device, precision, parallel)
        return PipelineTime.of(
            [Part.of(each, spec, parallel, fabric) for each in parts],
            device,
            fabric,
            parallel,
            self.choices.attained,
        )

    def _why_nothing_fits(self) -> str:
        tokens = self.demanded.workload.tokens
        best: tuple[float, str] = (math.inf, "")
        refused = ""
        for device in self.choices.accelerators:
            for weights in self.choices.weights:
                for kv in self.choices.kv:
                    precision = Precision(weights, kv or self.model.spec.dtype)
                    try:
                        parallel, room = self._roomiest(device, precision)
                    except ConfigError as error:
                        refused = str(error)
                        continue
                    needed = (room.weights + room.activations + room.request) / MEMORY_USED
                    ratio = needed / room.memory
                    text = (
                        f"the nearest is {parallel.devices} x {device.name} with weights "
                        f"{precision.weights if weights != 'none' else 'as they are'}, where each "
                        f"would need {needed / 2**30:,.1f} GiB and has "
                        f"{room.memory / 2**30:,.1f}"
                    )
                    best = min(best, (ratio, text))
        if not best[1]:
            return refused
        return (
            f"nothing holds the model and one request of {tokens:,} tokens; {best[1]}: allow more "
            "devices (--tp, --pp, --network), fewer bits (--quantization int4, --kv-cache-dtype "
            "int8), another accelerator (--gpu), or shorter requests (--isl, --osl)"
        )

    def _roomiest(self, device: Accelerator, precision: Precision) -> tuple[Parallelism, Room]:
        """The most devices that can share the model, and what one of them has. Raises
        ConfigError."""
        error: ConfigError | None = None
        for tensor in sorted(self.choices.tensor, reverse=True):
            for pipeline in sorted(self.choices.pipeline or (1,), reverse=True):
                parallel = Parallelism(tensor, pipeline, self.choices.exchange)
                try:
                    self.fabric(device).check(parallel, device.name)
                    return parallel, self._room(device, precision, parallel)
                except ConfigError as found:
                    error = found
        assert error is not None, "some number of devices was asked for"
        raise error


def most_served(serves: Callable[[int], bool], places: int) -> int:
    """The largest number up to ``places`` that is served, 0 if none; what serves more serves
    fewer."""
    if not serves(1):
        return 0
    low, high = 1, 2
    while high <= places and serves(high):
        low, high = high, high * 2
    high = min(high, places + 1)
    while high - low > max(low // 32, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low

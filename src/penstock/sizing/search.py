"""The search for configurations that serve a load within its objectives.

A configuration is an accelerator, how many of them share a model (ranks and stages), the types of
weights and of keys and values, and how many such replicas there are. Of each the number of replicas
is the least that meets the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.cache.geometry import KvDType
from penstock.dtypes import QuantizationName
from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Attained, DeviceKind
from penstock.sizing.model import Precision, SizedModel, SizedPlan
from penstock.sizing.parallel import Exchange, Parallelism, check
from penstock.sizing.roofline import Bounds, CostTable, Roofline
from penstock.sizing.serving import Estimate, Load, Slo, Workload, estimate

MEMORY_USED = 0.9
"""The part of a device's memory that weights, keys and values and buffers may take; the rest is
for the runtime and what is fragmented."""
STEP_TOKENS: dict[DeviceKind, int] = {"gpu": 2048, "cpu": 512}
"""Tokens of a step at most: the backends' defaults."""

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
    attained: Attained | None = None
    """None: each device's own."""
    step_tokens: int | None = None


@dataclass(frozen=True)
class Demanded:
    """The load to serve: ``concurrency`` requests are always open."""

    workload: Workload
    concurrency: int
    slo: Slo


@dataclass(frozen=True)
class Room:
    """How the memory of one device of a replica is divided, in bytes."""

    memory: float
    weights: float
    activations: float
    request: float
    """Bytes of the keys, values and states of one request at its full length."""

    @property
    def requests(self) -> int:
        """How many requests fit beside the weights; negative where these do not fit."""
        left = self.memory * MEMORY_USED - self.weights - self.activations
        if left < 0:
            return -1
        return int(left / self.request) if self.request else 10**6


@dataclass(frozen=True)
class Configuration:
    """A way to serve a load, and what that gives."""

    device: Accelerator
    precision: Precision
    parallel: Parallelism
    replicas: int
    room: Room
    at_load: Estimate
    """What one replica gives its part of the load."""
    full: Estimate
    """What one replica gives as many requests as it serves within the SLO, or one if it serves
    none."""
    decode: Bounds
    prefill: Bounds
    excess: float
    """How many times the worst objective is missed; at most 1 meets all."""

    @property
    def meets(self) -> bool:
        return self.excess <= 1.0

    @property
    def devices(self) -> int:
        return self.replicas * self.parallel.devices

    @property
    def usd_per_hour(self) -> float | None:
        price = self.device.usd_per_hour
        return None if price is None else price * self.devices

    @property
    def usd_per_million(self) -> tuple[float, float] | None:
        """Cost of a million input and of a million output tokens at the load: the price of the
        time that steps spend on prompts, and of the rest."""
        return _per_million(self.usd_per_hour, self.at_load, self.replicas)

    @property
    def usd_per_million_full(self) -> tuple[float, float] | None:
        """The same of a replica that serves as many requests as it can within the SLO."""
        price = self.device.usd_per_hour
        hour = None if price is None else price * self.parallel.devices
        return _per_million(hour, self.full, 1)


def _per_million(
    usd_per_hour: float | None, given: Estimate, replicas: int
) -> tuple[float, float] | None:
    if usd_per_hour is None:
        return None
    second = usd_per_hour / 3600 / replicas * 1e6
    share = given.prefill_share
    return second * share / given.input_tps, second * (1 - share) / given.output_tps


@dataclass
class Search:
    """Tries configurations of one model for one load."""

    model: SizedModel
    demanded: Demanded
    choices: Choices
    _tables: dict[tuple[DeviceKind, Precision, int], CostTable] = field(default_factory=dict)
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
        most = device.most if device.link is not None else 1
        for tensor in self.choices.tensor:
            if tensor > most:
                continue
            stages: Iterable[int] = self.choices.pipeline or (1, 2, 4, 8)
            for pipeline in stages:
                parallel = Parallelism(tensor, pipeline, self.choices.exchange)
                if parallel.devices > most and self.choices.pipeline is None:
                    break
                try:
                    check(self.model.spec, parallel)
                except ConfigError:
                    if len(self.choices.tensor) == 1:
                        raise
                    break
                fits = self._room(device, precision, parallel).requests >= 1
                if fits:
                    yield parallel
                if fits and self.choices.pipeline is None:
                    break

    def _plan(self, device: Accelerator, precision: Precision) -> SizedPlan:
        return self.model.plan(device.kind, precision, self.budget(device))

    def budget(self, device: Accelerator) -> int:
        """Tokens of a step at most."""
        least = 1 + self.demanded.workload.speculation.tokens
        return max(self.choices.step_tokens or STEP_TOKENS[device.kind], least + 1)

    def _room(self, device: Accelerator, precision: Precision, parallel: Parallelism) -> Room:
        """Weights are shared evenly; keys and values as far as there are KV heads, latents not."""
        sized = self._plan(device, precision)
        its = sized.footprint
        heads = max((layer.kv_heads for layer in sized.plan.kv_layers), default=parallel.tensor)
        shared = min(parallel.tensor, heads) * parallel.pipeline
        return Room(
            device.memory_bytes,
            its.weights / parallel.devices,
            its.activations,
            its.sequence_bytes(self.demanded.workload.tokens) / shared,
        )

    def _configured(
        self, device: Accelerator, precision: Precision, parallel: Parallelism
    ) -> Configuration | None:
        load = self._loads.setdefault(
            self.budget(device), Load(self.demanded.workload, self.budget(device))
        )
        time = self.time(device, precision, parallel)
        room = self._room(device, precision, parallel)

        def at(concurrency: int) -> Estimate:
            return estimate(time, load, concurrency, room.requests, parallel.pipeline)

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
        return Configuration(
            device,
            precision,
            parallel,
            replicas,
            room,
            alone,
            full,
            time.bounds(alone.decode),
            time.bounds(alone.prefill),
            slo.excess(alone),
        )

    def time(self, device: Accelerator, precision: Precision, parallel: Parallelism) -> Roofline:
        """The time of steps on ``device``."""
        key = device.kind, precision, parallel.tensor
        costs = self._plan(device, precision).costs
        table = self._tables.setdefault(key, CostTable(costs, parallel.tensor))
        return Roofline.of(self.model.spec, table, device, parallel, self.choices.attained)

    def _why_nothing_fits(self) -> str:
        tokens = self.demanded.workload.tokens
        least = min(self.choices.tensor) * min(self.choices.pipeline or (1,))
        joined = [each.most if each.link is not None else 1 for each in self.choices.accelerators]
        if least > max(joined):
            return (
                f"{least} devices are to share the model, and a machine has at most {max(joined)} "
                "that are linked of these; lower --tp or --pp, or take another accelerator (--gpu)"
            )
        best: tuple[float, str] = (math.inf, "")
        for device in self.choices.accelerators:
            for weights in self.choices.weights:
                for kv in self.choices.kv:
                    precision = Precision(weights, kv or self.model.spec.dtype)
                    most = device.most if device.link is not None else 1
                    tensor = max((t for t in self.choices.tensor if t <= most), default=1)
                    parallel = Parallelism(tensor)
                    if self.choices.pipeline:
                        parallel = replace(parallel, pipeline=max(self.choices.pipeline))
                    room = self._room(device, precision, parallel)
                    needed = (room.weights + room.activations + room.request) / MEMORY_USED
                    ratio = needed / room.memory
                    text = (
                        f"the nearest is {tensor * parallel.pipeline} x {device.name} with weights "
                        f"{precision.weights if weights != 'none' else 'as they are'}, where each "
                        f"would need {needed / 2**30:,.1f} GiB and has "
                        f"{room.memory / 2**30:,.1f}"
                    )
                    best = min(best, (ratio, text))
        return (
            f"nothing holds the model and one request of {tokens:,} tokens; {best[1]}: allow more "
            "devices (--tp, --pp), fewer bits (--quantization int4, --kv-cache-dtype int8), "
            "another accelerator (--gpu), or shorter requests (--isl, --osl)"
        )


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

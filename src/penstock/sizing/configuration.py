"""A way to serve a load: devices, how they share a model, and what that gives."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sizing.accelerator import Accelerator
from penstock.sizing.model import Precision
from penstock.sizing.parallel import Parallelism
from penstock.sizing.roofline import Bounds
from penstock.sizing.serving import Estimate

MEMORY_USED = 0.9
"""The part of a device's memory that weights, keys and values and buffers may take; the rest is
for the runtime and what is fragmented."""


@dataclass(frozen=True)
class Room:
    """How the memory of one device of a replica is divided, in bytes: of the rank with most, on the
    stage with the least room."""

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
    machines: int
    """Those of a replica."""
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

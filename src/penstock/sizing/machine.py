"""What a load gets of Penstock on a machine that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sizing.configuration import MEMORY_USED, Room
from penstock.sizing.machine_times import FittedTime, MachineTimes
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.search import Demanded, most_served
from penstock.sizing.serving import Estimate, Load, estimate


@dataclass(frozen=True)
class MachineEstimate:
    """One type of weights on this machine."""

    precision: Precision
    room: Room
    at_load: Estimate
    most: int
    """Requests that may be open within the SLO; 0: not even one."""
    full: Estimate | None
    """What these get; None where there are none."""
    decode: tuple[tuple[int, float], ...]
    """Seconds of a step that decodes so many sequences."""
    excess: float


def predict(
    model: SizedModel,
    precision: Precision,
    times: MachineTimes,
    demanded: Demanded,
    memory: int,
    step_tokens: int,
) -> MachineEstimate | None:
    """Predict a load; None where ``memory``, in bytes, does not hold the model and a request."""
    sized = model.plan("cpu", precision, step_tokens)
    its, load = sized.footprint, Load(demanded.workload, step_tokens)
    request = its.sequence_bytes(demanded.workload.tokens)
    room = Room(memory / MEMORY_USED, its.weights, its.activations, request)
    if room.requests < 1:
        return None
    time = FittedTime(times, sized.costs)

    def at(concurrency: int) -> Estimate:
        return estimate(time, load, concurrency, room.requests)

    most = most_served(lambda n: demanded.slo.excess(at(n)) <= 1.0, room.requests)
    alone = at(demanded.concurrency)
    return MachineEstimate(
        precision,
        room,
        alone,
        most,
        at(most) if most else None,
        tuple((n, time.seconds(load.step(n, 0))) for n in (1, 8, 32) if n <= room.requests),
        demanded.slo.excess(alone),
    )

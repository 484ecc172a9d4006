"""One job, in the process that was started for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from gpu.jobs import Job
from gpu.timing import CudaTimer
from gpu.workload import Size


@dataclass(frozen=True)
class Order:
    """What the worker is asked, by the process that started it."""

    job: Job
    size: Size
    model: str
    stories: str | None
    root: str  # of the source tree
    report: str  # a file that pytest may write
    started: float  # time.time()
    seconds: float  # that the job may take

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Order:
        return msgspec.json.decode(data, type=cls)


def work(order: Order) -> msgspec.Struct:
    """The job's result: Checks, Ceilings, Engine or Mixed. Raises what measuring raises."""
    device = torch.device("cuda", 0)
    model = Path(order.model)
    job = order.job
    # Imported where they are needed: what a job does not need does not count as its start.
    if job.kind == "checks":
        from gpu import checks

        stories = None if order.stories is None else Path(order.stories)
        return checks.run(Path(order.root), Path(order.report), stories, order.seconds)
    if job.kind == "ceilings":
        from gpu import ceilings

        free, _ = torch.cuda.mem_get_info(device)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        return ceilings.measure(CudaTimer(), device, ceilings.span(l2, free))
    if job.kind == "engine":
        from gpu import engine

        config = engine.engine_config(model, order.size, **job.engine)
        measures, batches = job.measures, job.batches
        return engine.measure(config, measures, batches, CudaTimer(), order.size, order.started)
    from gpu import peers

    run = {"generate": peers.generate, "generate_batch": peers.generate_batch}[job.name]
    return run(peers.build(model, device), order.size)

"""One job, in the process that was started for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from gpu.jobs import EXPERTS, LATENTS, Job
from gpu.settings import engine_config
from gpu.timing import CudaTimer, Timer, WallTimer
from gpu.workload import Size
from penstock.backends.cuda.capability import capability_of

Send = Callable[[msgspec.Struct], None]

_TINY = {EXPERTS: "tiny-moe", LATENTS: "tiny-latents"}
"""What a dry run has in the place of shapes."""


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
    dry: bool = False
    """Everything is done, as little as possible of it, on the CPU: no figure means anything."""

    @property
    def engine_options(self) -> dict[str, Any]:
        """Options of all engines."""
        return {"kv_cache_bytes": 1 << 22, "max_num_batched_tokens": 16} if self.dry else {}

    def changes(self, engine: dict[str, Any]) -> dict[str, Any]:
        """Options of a job's engine; a dry run has tiny models alone."""
        tiny = {"model": _TINY[engine["model"]]} if self.dry and "model" in engine else {}
        return self.engine_options | engine | tiny

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Order:
        return msgspec.json.decode(data, type=cls)


def work(order: Order, send: Send) -> msgspec.Struct:
    """The job's result: Checks, Compiled, Ceilings, Blocks, Engine or Mixed; ``send`` gets it as
    far as it has come, again and again. Raises what measuring raises."""
    device = torch.device("cpu") if order.dry else torch.device("cuda", 0)
    timer: Timer = WallTimer() if order.dry else CudaTimer()
    model = Path(order.model)
    job = order.job
    # Imported where they are needed: what a job does not need does not count as its start.
    if job.kind == "checks":
        from gpu import checks

        stories = None if order.stories is None else Path(order.stories)
        files = checks.DRY if order.dry else None
        reports = Path(order.report).parent
        return checks.run(Path(order.root), reports, stories, order.seconds, send, files)
    if job.kind == "compile":
        from gpu import ahead

        # Where there is no GPU, the plan is the CPU's, whose ops are the same.
        backend = {"backend": "cpu"} if order.dry else {}
        configs = [
            engine_config(model, order.size, **order.changes(changes), **backend)
            for changes in job.engines
            if not order.dry or changes.get("deterministic", True)
        ]
        at_most = 2 if order.dry else None
        return ahead.compile_ahead(
            configs, capability_of(device), order.seconds / 3, send, at_most=at_most
        )
    if job.kind == "ceilings":
        from gpu import ceilings

        if order.dry:
            return ceilings.measure(timer, device, 1 << 17, (16,), 1)
        free, _ = torch.cuda.mem_get_info(device)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        return ceilings.measure(timer, device, ceilings.span(l2, free))
    if job.kind == "blocks":
        from gpu import block_products

        if order.dry:
            return block_products.measure(timer, device, 0, send, 32, 256, (1,), 1)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        return block_products.measure(timer, device, l2, send)
    if job.kind == "engine":
        from gpu import engine

        config = engine_config(model, order.size, **order.changes(job.engine))
        batches = sorted({min(n, 2) for n in job.batches}) if order.dry else job.batches
        return engine.measure(
            *(config, job.measures, batches, timer, order.size, order.started), report=send
        )
    from gpu import peers

    run = {"generate": peers.generate, "generate_batch": peers.generate_batch}[job.name]
    return run(peers.build(model, device), order.size)

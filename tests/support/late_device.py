"""An executor whose steps and copies of blocks are as late as a device's may be.

Nothing that is queued is done before somebody waits for it, or chance lets a lane go on: steps, and
copies out of the cache and into it, each in their own order, and between lanes as the cuda backend
orders them (``backends.cuda.block_order``). So an engine that reads what has not come, or reuses
memory that has not left, says something else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from penstock.backends.cuda.block_order import BlockOrder, Touched
from penstock.config import EngineConfig
from penstock.engine.blocks_at_once import BlocksAtOnce
from penstock.engine.core import EngineCore
from penstock.engine.loader import load_models, open_model, plan_engine
from penstock.errors import EngineDeadError
from penstock.interface.blocks import BlockContent, BlockMover, BlockRows, Bytes
from penstock.interface.executor import Sampling, StepOutcome
from penstock.interface.host_executor import HostExecutor
from penstock.interface.step import StepInput
from support.overlap_executor import Deferred

POISON = 0xA5


@dataclass(eq=False)
class Work:
    """What was queued on a lane: a step, or a copy."""

    device: LateDevice
    lane: str
    run: Callable[[], Any]
    after: list[Work] = field(default_factory=list)
    over: bool = False
    result: Any = None

    def query(self) -> bool:
        return self.over

    @property
    def is_done(self) -> bool:
        self.device.go_on()
        return self.over

    @property
    def seconds(self) -> float:
        return 1e-3 if self.over else 0.0

    def wait(self) -> Any:
        self.device.finish(self)
        return self.result


class LateBlocks:
    """``interface.blocks.BlockMover`` of a late device."""

    def __init__(self, device: LateDevice, mover: BlockMover) -> None:
        self._device = device
        self._mover = mover
        self.taken = self.put_in = 0

    @property
    def group_bytes(self) -> tuple[int, ...]:
        return self._mover.group_bytes

    def memory(self, size: int) -> Bytes:
        return np.full(size, POISON, np.uint8)

    def take(self, group: int, blocks: Sequence[int], rows: Sequence[Bytes] | None = None) -> Work:
        if rows is None:
            rows = [self.memory(self.group_bytes[group]) for _ in blocks]
        for row in rows:
            row[:] = POISON
        numbers, content = np.array(blocks, np.int32), BlockRows(tuple(rows))

        def run() -> BlockContent:
            self._mover.take(group, blocks, content.rows).wait()
            return content

        self.taken += len(blocks)
        return self._device.queue("out", Touched(reads=(numbers,)), run)

    def put(self, group: int, blocks: Sequence[int], content: BlockContent) -> Work:
        numbers = np.array(blocks, np.int32)

        def run() -> BlockContent:
            self._mover.put(group, blocks, content).wait()
            return content

        self.put_in += len(blocks)
        return self._device.queue("in", Touched(writes=(numbers,)), run)

    def close(self) -> None:
        self._device.finish_all()


class LateDevice(Deferred):
    """An executor of depth 2 around one of the host."""

    def __init__(self, inner: HostExecutor, seed: int, haste: float) -> None:
        """``haste``: how probable it is that a lane goes on where it may."""
        super().__init__(inner)
        assert inner.blocks is not None
        self._random = random.Random(seed)
        self._haste = haste
        self._order = BlockOrder[Work](inner.num_blocks)
        self._lanes: dict[str, list[Work]] = {"steps": [], "out": [], "in": []}
        self._failed = False
        self.waits = 0
        """How often a lane had to wait for another."""
        self.blocks: Any = LateBlocks(self, BlocksAtOnce(inner.blocks))

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Any:
        deferred = super().submit(step, sampling)

        def run() -> StepOutcome:
            return deferred.wait()

        return self.queue("steps", Touched.of(step), run)

    def queue(self, lane: str, touched: Touched, run: Callable[[], Any]) -> Work:
        work = Work(self, lane, run, self._order.waits_for(lane, touched))
        self.waits += len(work.after)
        self._order.queued(lane, touched, work)
        self._lanes[lane].append(work)
        self.go_on()
        return work

    def go_on(self) -> None:
        """Let a lane do something, perhaps."""
        if not self._failed and self._random.random() < self._haste:
            lane = self._lanes[self._random.choice(list(self._lanes))]
            if lane:
                self.finish(lane[0])

    def fail(self) -> None:
        """Let nothing be done any more."""
        self._failed = True

    def finish(self, work: Work) -> None:
        """Do a piece of work, and what comes before it. Raises EngineDeadError."""
        if self._failed:
            raise EngineDeadError("the device has failed")
        lane = self._lanes[work.lane]
        while not work.over:
            first = lane[0]
            for before in first.after:
                self.finish(before)
            first.result = first.run()
            first.over = True
            lane.remove(first)

    def finish_all(self) -> None:
        if self._failed:
            return
        for lane in self._lanes.values():
            while lane:
                self.finish(lane[0])


@contextmanager
def late(
    config: EngineConfig, host_bytes: int = 0, seed: int = 0, haste: float = 0.3
) -> Iterator[EngineCore]:
    """An engine on a late device, whose memory is the host's; with a tier of ``host_bytes`` below
    its pool, which the options would refuse. Its books are checked before it is closed."""
    files = open_model(config)
    planned = plan_engine(config, files)
    resolved = msgspec.structs.replace(planned.config, kv_host_bytes=host_bytes)
    models = load_models(replace(planned, config=resolved), keeping="never", files=files)
    inner = models.executor
    assert isinstance(inner, HostExecutor)
    device = LateDevice(inner, seed, haste)
    core = EngineCore.of(replace(models, executor=device))
    try:
        yield core
        core.check_integrity()
    finally:
        core.close()

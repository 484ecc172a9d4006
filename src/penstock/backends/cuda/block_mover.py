"""Copies blocks of the cache between the device and the host, beside the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.block_order import BlockOrder, Touched
from penstock.backends.cuda.cache import Cache
from penstock.backends.cuda.failure import FAILURES, failed, one_error
from penstock.backends.cuda.host_memory import pinned
from penstock.backends.cuda.kernels.pages import PageTable
from penstock.errors import ConfigError, first_line
from penstock.interface.blocks import BlockContent, BlockRows, Bytes
from penstock.interface.step import Int32s, StepInput
from penstock.plan.kv_groups import KvGroups

STAGING_BYTES: Final = 8 << 20
"""Bytes that a lane gathers before they are copied in one piece each: at 50 GB/s they take 160 us,
some ten times as long as launching all of it."""
_STEPS: Final = "steps"
_Part = Callable[[int, Tensor, Tensor], None]
"""Copies some blocks by way of the staging memory: the first one's place, the ids of them all, and
as many pieces of memory."""


def staging_bytes(piece_bytes: int) -> int:
    """Bytes of the device's memory that copies of blocks of so many bytes take, in both
    directions."""
    return 2 * _staged(piece_bytes) * piece_bytes


def _staged(piece_bytes: int) -> int:
    """Blocks that a lane has room for."""
    return max(STAGING_BYTES // piece_bytes, 1)


class DeviceCopy:
    """``interface.blocks.BlockCopy`` that is on its way on a stream, or was made at once."""

    def __init__(
        self, content: BlockContent, events: tuple[torch.cuda.Event, torch.cuda.Event] | None
    ) -> None:
        """``events``: before it and behind it; None: it is done."""
        self._content = content
        self._events = events

    @property
    def is_done(self) -> bool:
        if self._events is None:
            return True
        with one_error():
            return bool(self._events[1].query())

    @property
    def seconds(self) -> float:
        if self._events is None or not self.is_done:
            return 0.0
        began, ended = self._events
        return float(began.elapsed_time(ended)) / 1e3

    def wait(self) -> BlockContent:
        if self._events is not None:
            with one_error():
                self._events[1].synchronize()
        return self._content


class _Lane:
    """A stream, and the staging memory of what is copied on it in one direction."""

    def __init__(self, name: str, pieces: int, piece_bytes: int, device: torch.device) -> None:
        self.name = name
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.staging = torch.empty((pieces, piece_bytes // 4), dtype=torch.int32, device=device)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Queue what is queued meanwhile on this lane."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield


class DeviceBlocks:
    """``interface.blocks.BlockMover`` of a paged cache: blocks in the device's layout.

    Each direction has a stream of its own. Blocks on their way out are gathered on the device, of
    all layers into one piece each (``kernels.pages``), and each piece is one copy to the host; on
    their way in the same backwards. Neither stops a step, nor waits for one, unless it touches the
    same blocks (:class:`~penstock.backends.cuda.block_order.BlockOrder`). On the CPU, where kernels
    are interpreted, all of it is done at once.
    """

    def __init__(
        self, groups: KvGroups, caches: Sequence[Cache], num_blocks: int, device: torch.device
    ) -> None:
        """``caches``: one of each place in a page, which the layers of all groups there share.

        Takes :func:`staging_bytes` of the device's memory. Raises what launching a kernel does."""
        self._num_blocks = num_blocks
        self._device = device
        self._tables = [
            PageTable([array for cache in caches[: len(group.layers)] for array in cache.arrays])
            for group in groups
        ]
        largest = max(self.group_bytes)
        pieces = _staged(largest)
        self._out = _Lane("out", pieces, largest, device)
        self._in = _Lane("in", pieces, largest, device)
        self._order = BlockOrder[torch.cuda.Event](num_blocks)
        self._closed = False
        self._warm_up()

    @classmethod
    def make(
        cls, groups: KvGroups, caches: Sequence[Cache], num_blocks: int, device: torch.device
    ) -> DeviceBlocks:
        """As the constructor. Raises ConfigError where the GPU has too little memory, and as
        :func:`failed` says."""
        try:
            return cls(groups, caches, num_blocks, device)
        except torch.cuda.OutOfMemoryError as error:
            raise ConfigError(
                f"the GPU has too little memory to copy blocks: {first_line(error)}; lower "
                "kv_cache_bytes"
            ) from error
        except FAILURES as error:
            raise failed(error, starting=True) from error

    @property
    def group_bytes(self) -> tuple[int, ...]:
        return tuple(table.piece_bytes for table in self._tables)

    def memory(self, size: int) -> Bytes:
        return pinned(size, self._device)

    def take(
        self, group: int, blocks: Sequence[int], rows: Sequence[Bytes] | None = None
    ) -> DeviceCopy:
        table, each = self._checked(group, blocks)
        if rows is None:
            # Of torch's, which keeps such memory and knows when copies into it are done.
            own = torch.empty(
                (len(blocks), each), dtype=torch.uint8, pin_memory=self._device.type == "cuda"
            )
            rows = tuple(own.numpy())
        targets = _words(rows, len(blocks), each)
        numbers = np.array(blocks, np.int32)

        def copy(first: int, ids: Tensor, staging: Tensor) -> None:
            table.gather(ids, staging)
            for target, piece in zip(targets[first:], staging, strict=False):
                target.copy_(piece, non_blocking=True)

        events = self._run(self._out, Touched(reads=(numbers,)), numbers, each, copy)
        return DeviceCopy(BlockRows(tuple(rows)), events)

    def put(self, group: int, blocks: Sequence[int], content: BlockContent) -> DeviceCopy:
        table, each = self._checked(group, blocks)
        sources = _words(rows_of(content, len(blocks), each), len(blocks), each)
        numbers = np.array(blocks, np.int32)
        if self._device.type == "cuda":
            sources = [each if each.is_pinned() else each.pin_memory() for each in sources]

        def copy(first: int, ids: Tensor, staging: Tensor) -> None:
            for source, piece in zip(sources[first:], staging, strict=False):
                piece.copy_(source, non_blocking=True)
            table.scatter(ids, staging)

        events = self._run(self._in, Touched(writes=(numbers,)), numbers, each, copy)
        return DeviceCopy(content, events)

    def before(self, step: StepInput) -> Touched | None:
        """Let what is queued next on the current stream, a step, wait for the copies that concern
        it; returns what to tell :meth:`behind` of it."""
        if self._device.type != "cuda":
            return None
        touched = Touched.of(step)
        for event in self._order.waits_for(_STEPS, touched):
            torch.cuda.current_stream(self._device).wait_event(event)
        return touched

    def behind(self, touched: Touched) -> None:
        """The step was queued: copies of its blocks wait for it."""
        event = torch.cuda.Event()
        event.record()
        self._order.queued(_STEPS, touched, event)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(*FAILURES):  # what has failed is told by whoever waits for it
            for lane in (self._out, self._in):
                if lane.stream is not None:
                    lane.stream.synchronize()

    def _run(
        self,
        lane: _Lane,
        touched: Touched,
        numbers: Int32s,
        piece_bytes: int,
        copy: _Part,
    ) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        """Queue copies of blocks on a lane, as many at a time as it has room for; returns the
        events before and behind them."""
        if self._closed:
            raise RuntimeError("the executor is closed")
        on_gpu = lane.stream is not None
        try:
            with lane.current():
                if lane.stream is not None:
                    for event in self._order.waits_for(lane.name, touched):
                        lane.stream.wait_event(event)
                    began = torch.cuda.Event(enable_timing=True)
                    ended = torch.cuda.Event(enable_timing=True)
                    began.record()
                ids = torch.from_numpy(numbers)
                if on_gpu:
                    ids = ids.pin_memory().to(self._device, non_blocking=True)
                whole = lane.staging.view(-1)
                words = piece_bytes // 4
                most = len(whole) // words
                for first in range(0, len(numbers), most):
                    part = ids[first : first + most]
                    copy(first, part, whole[: len(part) * words].view(len(part), words))
                if lane.stream is None:
                    return None
                ended.record()
        except FAILURES as error:
            raise failed(error) from error
        self._order.queued(lane.name, touched, ended)
        return began, ended

    def _checked(self, group: int, blocks: Sequence[int]) -> tuple[PageTable, int]:
        """The table of a group, and the bytes of one of its blocks."""
        if not 0 <= group < len(self._tables):
            raise ValueError(f"there is no group {group} of cached layers")
        for block in blocks:
            if not 0 <= block < self._num_blocks:
                raise ValueError(f"there is no block {block} of the KV cache")
        return self._tables[group], self._tables[group].piece_bytes

    def _warm_up(self) -> None:
        """Compile both kernels, and change nothing."""
        block = torch.zeros(1, dtype=torch.int32, device=self._device)
        for table in self._tables:
            piece = self._out.staging.view(-1)[: table.piece_bytes // 4].view(1, -1)
            table.gather(block, piece)
            table.scatter(block, piece)
        if self._device.type == "cuda":  # the staging memory is the lanes' from now on
            torch.cuda.current_stream(self._device).synchronize()


def rows_of(content: BlockContent, count: int, size: int) -> tuple[Bytes, ...]:
    """So many blocks, each for itself. Raises ValueError where they are not of this size."""
    if isinstance(content, BlockRows):
        return content.rows
    if len(content.data) != count * size:
        raise ValueError(f"{count} blocks take {count * size} bytes, not {len(content.data)}")
    return tuple(content.data.reshape(count, size))


def _words(rows: Sequence[Bytes], count: int, size: int) -> list[Tensor]:
    """Rows of bytes as int32. Raises ValueError unless there are so many, of this size."""
    if len(rows) != count or any(len(row) != size for row in rows):
        raise ValueError(f"{count} blocks of {size} bytes are not rows of {list(map(len, rows))}")
    # torch has no arrays that are only read.
    own = [row if row.flags.writeable else row.copy() for row in rows]
    return [torch.from_numpy(row.view(np.int32)) for row in own]

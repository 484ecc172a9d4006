"""A group of ranks that are processes of one machine, by ``torch.distributed``.

NCCL joins GPUs. Where kernels are interpreted on the CPU, for tests, Gloo takes its place, and all
else is the same.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, FileStore, GatherOptions

from penstock.backends.cuda.capability import Capability
from penstock.errors import ConfigError, EngineDeadError, first_line
from penstock.interface.collective import WAIT_S, Collective

_WAIT: Final = timedelta(seconds=3 * WAIT_S)
"""How long a rank waits for others outside of captured steps: they may still read weights."""

_GLOO_WAIT: Final = timedelta(seconds=60)
"""How long Gloo waits for ranks that are within milliseconds of each other. An abort that comes
just as its thread begins to exchange is lost, and whoever frees the communicator waits for that
thread."""

_ABORT_S: Final = 5.0
"""Seconds that leaving the group may take."""


def join(collective: Collective, device: torch.device, capability: Capability) -> DistributedGroup:
    """Meet the other ranks, each of which calls this with its own ``device``, and return the group.

    ``collective`` is how they find each other, and how a rank learns that the group is given up.
    Raises ConfigError where ranks would compute other bits than each other, and EngineDeadError
    where they cannot exchange anything.
    """
    _require_alike(collective, capability)
    folder = TemporaryDirectory(prefix="penstock-ranks-") if collective.rank == 0 else None
    try:
        own = b"" if folder is None else os.fsencode(folder.name)
        # One byte at least: nothing at all is no array.
        told = collective.all_gather(np.frombuffer(own + b"\0", np.uint8)[None])
        path = os.fsdecode(told[0].tobytes()[:-1])
        try:
            processes = _communicator(Path(path) / "store", collective, device)
            group = DistributedGroup(processes, collective, folder)
            group.meet(device)
        except RuntimeError as error:
            raise EngineDeadError(
                f"ranks cannot exchange what they compute: {first_line(error)}; start the engine "
                "again with NCCL_DEBUG=INFO in its environment, which says more, or leave "
                "tensor_parallel out"
            ) from error
        return group
    except BaseException:
        if folder is not None:
            _remove(folder)
        raise


class DistributedGroup:
    """``backends.cuda.group.Group`` of processes, by a communicator of ``torch.distributed``.

    When the group is given up, the communicator is aborted, so that kernels which wait for another
    rank end, and with them whoever waits for the device.
    """

    def __init__(
        self, processes: Any, collective: Collective, folder: TemporaryDirectory[str] | None
    ) -> None:
        """``processes``: a ProcessGroupNCCL or ProcessGroupGloo; ``folder``: rank 0's, where they
        met, to be removed with the group."""
        self.rank = collective.rank
        self.world = collective.world
        self._collective = collective
        self._folder = folder
        self._lock = threading.Lock()
        self._leaving: threading.Thread | None = None
        self._processes: Any | None = processes
        self._all, self._first = AllgatherOptions(), GatherOptions()
        # On the current stream, so that graphs hold it and nothing else has to be waited for.
        self._all.asyncOp = self._first.asyncOp = False
        self._first.rootRank = 0
        collective.when_given_up(self._abort)

    def meet(self, device: torch.device) -> None:
        """Exchange something: communicators are made at the first use, which must not be within a
        graph. Raises RuntimeError where that fails."""
        own = torch.full((1,), self.rank, dtype=torch.uint8, device=device)
        met = torch.zeros(self.world, dtype=torch.uint8, device=device)
        self.all_gather(met, own)
        self.gather_to_first(None if self.rank else met, own)
        if met.tolist() != list(range(self.world)):
            raise RuntimeError(f"rank {self.rank} received {met.tolist()} in the place of numbers")

    def all_gather(self, out: Tensor, part: Tensor) -> None:
        self._finish(self._open()._allgather_base(out, part, self._all))

    def gather_to_first(self, out: Tensor | None, part: Tensor) -> None:
        parts = [] if out is None else [list(out.view(self.world, -1))]
        self._finish(self._open().gather(parts, [part], self._first))

    def same_rows(self, rows: Sequence[int]) -> tuple[int, ...]:
        parts = self._collective.all_gather(np.array([rows], np.int64))
        return tuple(sorted({int(each) for part in parts for each in part.ravel()}))

    def close(self) -> None:
        self._abort()
        if self._leaving is not None:
            self._leaving.join(_ABORT_S)
        if self._folder is not None:
            _remove(self._folder)

    def _finish(self, work: Any | None) -> None:
        """Return once Gloo's ``work`` is done, or raise once the group is given up. NCCL has queued
        it behind what the current stream has, and there is None to wait for."""
        if work is not None:
            while not work.is_completed():
                self._require_open()
                time.sleep(1e-4)
            work.wait()  # which raises what went wrong

    def _open(self) -> Any:
        processes = self._processes
        self._require_open()
        return processes

    def _require_open(self) -> None:
        if self._leaving is not None:
            raise RuntimeError(f"rank {self.rank} has left the group, or waits for ranks that have")

    def _abort(self) -> None:
        """End whatever waits for other ranks. From any thread, which does not wait for it: a
        communicator may live until the graphs that hold its calls are freed."""
        with self._lock:
            if self._leaving is None:
                self._leaving = threading.Thread(
                    target=self._leave, name="penstock-ranks-abort", daemon=True
                )
                self._leaving.start()

    def _leave(self) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.abort()


def _remove(folder: TemporaryDirectory[str]) -> None:
    """Remove rank 0's ``folder``, where another rank may still write as it leaves the group."""
    for pause in (0.01, 0.1, 1.0):
        try:
            return folder.cleanup()
        except OSError:
            time.sleep(pause)


def _communicator(store_path: Path, collective: Collective, device: torch.device) -> Any:
    """Return the communicator of this rank, by a file that this user alone can read."""
    rank, world = collective.rank, collective.world
    store = FileStore(str(store_path), world)
    if device.type == "cuda":
        # Ranks are of one machine, which may have no network, or one that is for others.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _WAIT
        return dist.ProcessGroupNCCL(store, rank, world, options)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _GLOO_WAIT
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, world, options)


def _require_alike(collective: Collective, capability: Capability) -> None:
    """Raise ConfigError where the GPUs of ranks are of several kinds: some sums have another order
    on each."""
    told = collective.all_gather(np.array([capability], np.int64))
    kinds = [tuple(part.ravel().tolist()) for part in told]
    first = kinds[0]
    for rank, kind in enumerate(kinds):
        if kind != first:
            raise ConfigError(
                f"the GPU of rank {rank} has compute capability {kind[0]}.{kind[1]}, and that of "
                f"rank 0 {first[0]}.{first[1]}; ranks need GPUs of one kind: name some by "
                "CUDA_VISIBLE_DEVICES"
            )

"""Memory of the host that the device reads and writes by itself (*pinned*)."""

from __future__ import annotations

import mmap
import weakref

import numpy as np
import torch

from penstock.errors import first_line
from penstock.interface.blocks import Bytes


def pinned(size: int, device: torch.device) -> Bytes:
    """``[size]`` bytes of any content, which begin with a page of memory.

    Unlike torch's own, they are not rounded up to a power of two, and files can be read into them
    past the page cache. They are given back with the last view of them. Any thread. Raises
    MemoryError where the system does not give so much, or the driver cannot pin it. On the CPU,
    where kernels are interpreted, it is plain memory.
    """
    try:
        pages = mmap.mmap(-1, max(size, mmap.PAGESIZE))
    except OSError as error:
        raise MemoryError(f"{size:,} bytes cannot be had: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):  # few entries in the device's tables, and quicker to clear
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory: Bytes = np.frombuffer(pages, np.uint8)
    if device.type == "cuda":
        address = memory.ctypes.data
        runtime = torch.cuda.cudart()
        code = int(runtime.cudaHostRegister(address, len(pages), 0))
        if code:
            why = first_line(torch.cuda.CudaError(code))
            raise MemoryError(f"{size:,} bytes cannot be pinned for the GPU: {why}")
        # Not with ``pages``, which are unmapped before anybody is told of their end.
        weakref.finalize(memory, runtime.cudaHostUnregister, address)
    return memory[:size]

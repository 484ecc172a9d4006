"""Scratch memory that products share: one runs at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.backends.cuda.capability import Capability, capability_of
from penstock.backends.cuda.kernels.tiles import MAX_PARALLEL

_ALIGNMENT = 256


class Workspace:
    """Bytes for what a product needs only while it runs.

    Matrices reserve when they are made, and the buffer grows to what the neediest asks for. All are
    made before the first step, so a step allocates nothing and addresses stay what they are.
    """

    def __init__(self, device: torch.device, capability: Capability | None = None) -> None:
        """``capability``: of the GPU that products are for; by default what ``device`` has."""
        self.device = device
        self.capability = capability or capability_of(device)
        self._bytes = torch.empty(0, dtype=torch.uint8, device=device)
        self.counters = torch.zeros(MAX_PARALLEL, dtype=torch.int32, device=device)
        """One for each tile of a launch that splits K; 0 between launches."""

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self.counters.nbytes

    def reserve(self, nbytes: int) -> None:
        """Make sure that ``nbytes`` can be carved. What was carved before is no longer valid."""
        if nbytes > self._bytes.nbytes:
            self._bytes = torch.empty(0, dtype=torch.uint8, device=self.device)  # free first
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def carve(self, *parts: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Arrays of these shapes and types, one after another; they hold anything."""
        tensors, offset = [], 0
        for shape, dtype in parts:
            nbytes = math.prod(shape) * dtype.itemsize
            if offset + nbytes > self._bytes.nbytes:
                raise RuntimeError(f"{offset + nbytes} bytes of scratch were not reserved")
            tensors.append(self._bytes[offset : offset + nbytes].view(dtype).view(shape))
            offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return tensors


def carved_bytes(*parts: tuple[tuple[int, ...], torch.dtype]) -> int:
    """What :meth:`Workspace.carve` needs for these."""
    sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in parts)
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

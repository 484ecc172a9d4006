"""What products share: scratch memory, as one runs at a time, and constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
from numpy.typing import NDArray
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
        self._constants: dict[Hashable, Tensor] = {}

    @property
    def nbytes(self) -> int:
        constants = sum(each.nbytes for each in self._constants.values())
        return self._bytes.nbytes + self.counters.nbytes + constants

    def constant(self, name: Hashable, make: Callable[[], NDArray[Any]]) -> Tensor:
        """Return what ``make`` makes, on the device; once for each ``name``."""
        if name not in self._constants:
            self._constants[name] = torch.from_numpy(make()).to(self.device)
        return self._constants[name]

    def reserve(self, nbytes: int) -> None:
        """Make sure that ``nbytes`` can be carved. What was carved before is no longer valid."""
        if nbytes > self._bytes.nbytes:
            self._bytes = torch.empty(0, dtype=torch.uint8, device=self.device)  # free first
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def carve(self, *parts: tuple[tuple[int, ...], torch.dtype], taken: int = 0) -> list[Tensor]:
        """Arrays of these shapes and types, one after another; they hold anything.

        ``taken``: the :func:`carved_bytes` of what was carved before and is still in use.
        """
        tensors, offset = [], taken
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

"""Which kind of GPU kernels are made for."""

from __future__ import annotations

import torch

Capability = tuple[int, int]
"""A compute capability, major and minor."""


def capability_of(device: torch.device) -> Capability:
    """The compute capability of ``device``; the interpreter passes for an H100."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)

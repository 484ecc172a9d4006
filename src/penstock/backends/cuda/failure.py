"""What the engine ends with when the GPU fails."""

from __future__ import annotations

from penstock.errors import EngineDeadError, first_line


def gpu_failed(error: RuntimeError) -> EngineDeadError:
    """What the engine ends with: a CUDA error leaves a process that can do no more on the GPU."""
    return EngineDeadError(
        f"the GPU failed: {first_line(error)}; the engine has ended and its requests with it. "
        "Start it again; if that fails, too, see nvidia-smi and the kernel's log (dmesg) for Xid "
        "errors"
    )

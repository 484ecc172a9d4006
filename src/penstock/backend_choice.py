"""Which backend computes: the ``backend`` option for one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch
from penstock.hardware import Hardware

BackendName = Literal["auto", "cpu", "cuda", "reference"]
ChosenBackend = Literal["cpu", "cuda", "reference"]


@dataclass(frozen=True)
class BackendChoice:
    """The backend that the engine uses, and why."""

    name: ChosenBackend
    reason: str
    gpu: Gpu | None = None
    """The GPU that the cuda backend uses; None for other backends."""
    notes: tuple[str, ...] = ()
    """Lines that whoever starts the engine should see."""


def choose_backend(asked: BackendName, hardware: Hardware) -> BackendChoice:
    """Return the backend for the option ``backend``. "auto" is the GPU if there is a usable one,
    else the CPU.

    ``hardware.gpu`` must have been looked for unless a backend without one is asked for. Raises
    ConfigError naming the fix.
    """
    if asked == "reference":
        return BackendChoice("reference", "as asked")
    search = hardware.gpu or GpuSearch()
    if asked == "cuda":
        gpu = search.require()
        note = (f"on {gpu.described}",)
        if gpu.interpreted:
            note = ("TRITON_INTERPRET is set: GPU kernels are interpreted on the CPU, for tests",)
        return BackendChoice("cuda", "as asked", gpu, note)
    if asked == "auto" and search.gpu is not None and not search.gpu.interpreted:
        gpu = search.gpu
        note = (f"on {gpu.described}; --backend cpu computes on the CPU",)
        return BackendChoice("cuda", "there is a GPU that serves", gpu, note)
    notes = (
        () if asked == "cpu" or search.problem is None else (f"no GPU is used: {search.problem}",)
    )
    return BackendChoice("cpu", "as asked" if asked == "cpu" else "the native backend", notes=notes)


def refuse_cpu_options(threads: int | str | None) -> None:
    """Raise ConfigError for options that the cuda backend has no use for."""
    if threads is not None:
        raise ConfigError(
            f"threads {threads} has no effect on the cuda backend, which computes on the GPU; "
            "leave it out, or choose --backend cpu"
        )


def require_deterministic(deterministic: bool, backend: ChosenBackend) -> None:
    """Raise ConfigError where a backend that always is deterministic is asked not to be."""
    if not deterministic and backend != "cuda":
        raise ConfigError(
            f"deterministic can be turned off on the cuda backend alone; {backend} has no faster "
            "way that is not, so leave it on"
        )

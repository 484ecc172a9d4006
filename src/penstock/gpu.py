"""The GPU of this process: found, checked, described. Imports torch only where a driver is."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from penstock.errors import ConfigError, first_line

LEAST_CAPABILITY: Final = (8, 0)
"""Ampere: bfloat16 tensor cores and asynchronous copies."""
LEAST_TORCH: Final = (2, 9)
INSTALL: Final = "pip install 'penstock[cuda]'"


@dataclass(frozen=True)
class Gpu:
    """The GPU that the cuda backend would use: the first that CUDA_VISIBLE_DEVICES leaves."""

    name: str
    memory_total: int  # bytes
    memory_free: int  # bytes, with this process's CUDA context already there
    multiprocessors: int
    capability: tuple[int, int]
    interpreted: bool = False
    """Whether there is no GPU and kernels are interpreted on the CPU, in the host's memory."""
    count: int = 1
    """Number of GPUs that CUDA_VISIBLE_DEVICES leaves; interpreted, as many as anybody asks for."""

    @property
    def described(self) -> str:
        if self.interpreted:
            return self.name
        major, minor = self.capability
        return f"{self.name} (capability {major}.{minor}, {self.memory_total / 2**30:.0f} GiB)"


@dataclass(frozen=True)
class GpuSearch:
    """A GPU that can be used, or why there is none; neither where there is no sign of one."""

    gpu: Gpu | None = None
    problem: str | None = None
    """What is wrong and what would help, as words that follow "the cuda backend cannot run: "."""

    def require(self) -> Gpu:
        """The GPU; raises ConfigError with the cause and the fix."""
        if self.gpu is None:
            problem = self.problem or (
                "no NVIDIA driver is found on this machine; install it, or, in a container, pass "
                "the GPU through (docker run --gpus all)"
            )
            raise ConfigError(f"the cuda backend cannot run: {problem}; or choose --backend cpu")
        return self.gpu


def is_interpreted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether kernels will be interpreted; Triton reads the same when a kernel is imported."""
    return environment.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def find_gpu(
    host_memory: int,
    *,
    environment: Mapping[str, str] = os.environ,
    load_library: Callable[[str], Any] = ctypes.CDLL,
    import_torch: Callable[[], Any] = lambda: import_module("torch"),
    installed: Callable[[str], bool] = lambda name: find_spec(name) is not None,
    which: Callable[[str], str | None] = shutil.which,
) -> GpuSearch:
    """Look for a GPU. ``host_memory``: bytes that the interpreter's "device" may use.

    Where there is no driver this takes a failed library load; where there is one, torch is
    imported and makes its CUDA context.
    """
    missing = [name for name in ("torch", "triton") if not installed(name)]
    if is_interpreted(environment):
        if missing:
            return GpuSearch(problem=_not_installed(missing))
        interpreter = Gpu("Triton's interpreter", host_memory, host_memory, 1, (8, 0), True)
        return GpuSearch(replace(interpreter, count=sys.maxsize))
    count = _driver_devices(load_library)
    if count is None:
        return GpuSearch()
    if isinstance(count, str):
        return GpuSearch(problem=count)
    if count == 0:
        hidden = environment.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
        return GpuSearch(problem=f"the NVIDIA driver shows no GPU{why}; make one visible")
    if missing:
        return GpuSearch(problem=_not_installed(missing))
    compiler = environment.get("CC")
    if not any(which(name) for name in ([compiler] if compiler else ["gcc", "clang", "cc"])):
        return GpuSearch(
            problem="Triton needs a C compiler to launch kernels and finds none; install gcc, or "
            "name one in the environment variable CC"
        )
    return _described(import_torch(), count)


def _not_installed(missing: list[str]) -> str:
    return (
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; {INSTALL}"
    )


def _driver_devices(load_library: Callable[[str], Any]) -> int | str | None:
    """GPUs that the driver shows, what is wrong with it, or None where there is no driver."""
    try:
        driver = load_library("libcuda.so.1")
    except OSError:
        return None
    code = driver.cuInit(0)
    if code == 100:  # CUDA_ERROR_NO_DEVICE
        return 0
    if code != 0:
        return (
            f"the NVIDIA driver does not start (cuInit gives error {code}); nvidia-smi shows "
            "whether it is installed and loaded in one version"
        )
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the NVIDIA driver does not say how many GPUs there are; see nvidia-smi"
    return count.value


def _described(torch: Any, count: int) -> GpuSearch:
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        return GpuSearch(problem=f"torch {torch.__version__} is older than {least}; {INSTALL} -U")
    if torch.version.cuda is None:
        return GpuSearch(
            problem=f"torch {torch.__version__} is built without CUDA; install a CUDA build "
            "(pip install torch --index-url https://download.pytorch.org/whl/cu128)"
        )
    try:
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
    except (RuntimeError, AssertionError) as error:  # CUDA errors, and torch's own checks
        reason = first_line(error)
        helps = "a newer NVIDIA driver may be needed"
        if "out of memory" in reason:
            helps = "end other programs that use it"
        return GpuSearch(
            problem=f"torch {torch.__version__} for CUDA {torch.version.cuda} cannot use the GPU: "
            f"{reason}; {helps} (see nvidia-smi)"
        )
    capability = (properties.major, properties.minor)
    if capability < LEAST_CAPABILITY:
        has, least = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        return GpuSearch(
            problem=f"{properties.name} has compute capability {has}, and {least} is the least "
            "that is supported (Ampere or newer); use another GPU"
        )
    return GpuSearch(
        Gpu(
            properties.name,
            total,
            free,
            properties.multi_processor_count,
            capability,
            count=count,
        )
    )

"""Errors for a GPU that fails, or for which a kernel cannot be compiled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

import triton
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from penstock.errors import ConfigError, EngineDeadError, PenstockError, first_line

FAILURES: Final = (RuntimeError, TritonError, subprocess.CalledProcessError, OSError)
"""Exceptions that launching kernels and waiting for them can raise. Triton compiles at the first
launch: it reads and writes files and starts compilers, and its own errors are plain exceptions."""

_COMPILER = "triton.compiler"
_MAKERS = (_COMPILER, "triton.runtime.build", "triton.runtime.cache", "triton.backends.nvidia")
_OF_DEVICE = "Triton Error [CUDA]"


def failed(error: Exception, starting: bool = False) -> PenstockError:
    """The one error that says what one of ``FAILURES`` means, and what helps.

    EngineDeadError, as a CUDA error leaves a process that can do no more on the GPU; ConfigError
    for a kernel that cannot be made while the engine starts.
    """
    name, module = _launched_from(error.__traceback__)
    device_failed = isinstance(error, RuntimeError) and (
        not module.startswith(_MAKERS) or _OF_DEVICE in str(error)
    )
    if device_failed or name is None:
        return gpu_failed(error, name)
    text = f"the GPU kernel {name} {_cause(error)}"
    if starting:
        return ConfigError(text)
    return EngineDeadError(f"{text}. The engine has ended and its requests with it")


def gpu_failed(error: Exception, kernel: str | None = None) -> EngineDeadError:
    """What the engine ends with: a CUDA error leaves a process that can do no more on the GPU."""
    where = "" if kernel is None else f" at the kernel {kernel}"
    return EngineDeadError(
        f"the GPU failed{where}: {first_line(error)}; the engine has ended and its requests with "
        "it. Start it again; if that fails, too, see nvidia-smi and the kernel's log (dmesg) for "
        "Xid errors"
    )


@contextmanager
def one_error() -> Iterator[None]:
    """Raise as :func:`failed` says what the block raises of ``FAILURES``."""
    try:
        yield
    except FAILURES as error:
        raise failed(error) from error


def _cause(error: Exception) -> str:
    version = f"Triton {triton.__version__}"
    if isinstance(error, OutOfResources):
        return (
            f"does not fit this GPU: of {error.name} it needs {error.required}, and there is "
            f"{error.limit}; choose another quantization, or --backend cpu"
        )
    if isinstance(error, subprocess.CalledProcessError) or "C compiler" in str(error):
        cause = first_line(error)
        return (
            f"could not be built: {version} needs a C compiler and Python's headers ({cause}); "
            "install gcc and python3-dev, or set CC"
        )
    if isinstance(error, OSError):
        return (
            f"could not be compiled: {first_line(error)}; see to it that {version} can write to "
            "its cache (TRITON_CACHE_DIR, by default ~/.triton) and start its compiler"
        )
    return (
        f"could not be compiled by {version}: {_first_cause(error)}; Penstock's kernels need "
        "Triton 3.5 or later and this GPU known to it: update torch, which brings Triton, or "
        "choose --backend cpu"
    )


def _first_cause(error: BaseException) -> str:
    """What went wrong in the innermost function: errors above it only show where it is called."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = getattr(error, "error_message", None)
    return first_line(error) if said is None else str(said).strip().splitlines()[0].rstrip(".")


def _launched_from(traceback: TracebackType | None) -> tuple[str | None, str]:
    """The kernel on whose launch an error was raised, if on any, and the module that raised it or
    the outermost of the compiler that did."""
    name, module = None, ""
    while traceback is not None:
        frame = traceback.tb_frame
        kernel = getattr(frame.f_locals.get("self"), "fn", None)
        if name is None and frame.f_globals.get("__name__", "").startswith("triton."):
            name = getattr(kernel, "__name__", None)
        if not module.startswith(_COMPILER):
            module = frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
    return name, module

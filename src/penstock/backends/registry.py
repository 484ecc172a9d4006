"""All backends by name, and the choice among them: the ``backend`` option for one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from penstock.backends.backend import Backend, BackendChoice, Obstacle
from penstock.backends.cpu.backend import CpuBackend
from penstock.backends.cuda.backend import CudaBackend
from penstock.backends.reference.backend import ReferenceBackend
from penstock.config import BackendName
from penstock.errors import ConfigError
from penstock.hardware import Hardware, with_gpu
from penstock.interface.automaton import Automaton

if TYPE_CHECKING:
    from penstock.interface.blocks import Bytes

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {each.name: each for each in (CudaBackend(), CpuBackend(), ReferenceBackend())}
)
"""The backends, in the order in which ``auto`` tries them."""


def backend(name: str) -> Backend:
    """Return the backend of this name. Raises ConfigError."""
    found = BACKENDS.get(name)
    if found is not None:
        return found
    *others, last = map(repr, sorted(BACKENDS))
    raise ConfigError(f"unknown backend {name!r}; there are {', '.join(others)} and {last}")


def multiplied_as_stored() -> dict[Literal["cpu", "gpu"], frozenset[str]]:
    """Return what backends multiply by as a checkpoint has it (``Backend.block_formats``), by the
    kind of their devices: what matrices take elsewhere depends on it."""
    return {"cpu": CpuBackend.block_formats, "gpu": CudaBackend.block_formats}


def native_automaton() -> type[Automaton] | None:
    """The suffix automaton of the native runtime; None where native code is missing."""
    from penstock.backends.cpu import native

    try:
        return native.load().SuffixAutomaton
    except ConfigError:
        return None


def block_checksum(content: Bytes) -> int:
    """The checksum of a block of a KV cache (``interface/blocks.py``)."""
    from penstock.backends.checksum import crc32c

    return crc32c(content)


def looked_for(asked: BackendName, hardware: Hardware) -> Hardware:
    """Return ``hardware`` with what the option ``backend`` may need: a GPU where one may be used.

    Imports torch if there is a driver.
    """
    needs = any(each.on_gpu for each in BACKENDS.values() if asked in ("auto", each.name))
    return with_gpu(hardware) if needs else hardware


def choose_backend(
    asked: BackendName,
    hardware: Hardware,
    obstacle: Callable[[Backend], Obstacle | None] = lambda _: None,
) -> BackendChoice:
    """Return the choice of the option ``backend``. "auto" is the GPU if there is a usable one that
    runs what is to be served, else the CPU.

    ``hardware`` is what :func:`looked_for` returned. ``obstacle`` says what keeps a backend from
    running the models, and is asked where "auto" can choose: neither of a backend that was named,
    nor of the last that can run here, which is for ``check_runnable`` to refuse. Raises ConfigError
    naming the fix.
    """
    if asked != "auto":
        return backend(asked).asked(hardware)
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    offered = [(each, each.offered(hardware)) for each in BACKENDS.values()]
    last = [each for each, choice in offered if choice is not None][-1:]
    for each, choice in offered:
        if choice is None:
            notes += each.why_not(hardware)
            continue
        found = None if each in last else obstacle(each)
        if found is None:
            reason = ", ".join((choice.reason, *reasons))
            return BackendChoice(each, reason, choice.gpu, (*choice.notes, *notes))
        notes += (f"{each.name} is not used: {found.what}",)
        reasons += (f"as {each.name} cannot run the model (see the notes)",)
    raise ConfigError("no backend can run here")

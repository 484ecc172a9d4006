"""All backends by name, and the choice among them: the ``backend`` option for one machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.backends.backend import Backend, BackendChoice
from penstock.backends.cpu.backend import CpuBackend
from penstock.backends.cuda.backend import CudaBackend
from penstock.backends.reference.backend import ReferenceBackend
from penstock.config import BackendName, ChosenBackend
from penstock.errors import ConfigError
from penstock.hardware import Hardware, with_gpu
from penstock.interface.automaton import Automaton

BACKENDS: Mapping[ChosenBackend, Backend] = MappingProxyType(
    {each.name: each for each in (CudaBackend(), CpuBackend(), ReferenceBackend())}
)
"""The backends in the order in which they are offered to who names none."""


def backend(name: str) -> Backend:
    """Return the backend of this name. Raises ConfigError."""
    for each in BACKENDS.values():
        if each.name == name:
            return each
    *others, last = map(repr, sorted(BACKENDS))
    raise ConfigError(f"unknown backend {name!r}; there are {', '.join(others)} and {last}")


def native_automaton() -> type[Automaton] | None:
    """The suffix automaton of the native runtime; None where native code is missing."""
    from penstock.backends.cpu import native

    try:
        return native.load().SuffixAutomaton
    except ConfigError:
        return None


def looked_for(asked: BackendName, hardware: Hardware) -> Hardware:
    """Return ``hardware`` with what the option ``backend`` may need: a GPU where one may be used.

    Imports torch if there is a driver.
    """
    needs = any(each.on_gpu for each in BACKENDS.values() if asked in ("auto", each.name))
    return with_gpu(hardware) if needs else hardware


def choose_backend(asked: BackendName, hardware: Hardware) -> BackendChoice:
    """Return the choice of the option ``backend``. "auto" is the GPU if there is a usable one, else
    the CPU.

    ``hardware`` is what :func:`looked_for` returned. Raises ConfigError naming the fix.
    """
    if asked != "auto":
        return backend(asked).asked(hardware)
    notes: tuple[str, ...] = ()
    for each in BACKENDS.values():
        choice = each.offered(hardware)
        if choice is not None:
            return BackendChoice(each, choice.reason, choice.gpu, (*choice.notes, *notes))
        notes += each.why_not(hardware)
    raise ConfigError("no backend can run here")

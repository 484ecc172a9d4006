"""Choose and load the native module for this machine.

The native runtime is compiled once per instruction set into modules ``_native_<isa>``; the best one
that was built and that this CPU and its kernel can run is loaded. ``PENSTOCK_ISA`` names one
instead, for tests and comparisons. An installation from source has the one of the machine that it
was made on, and the fallback; ``PENSTOCK_ISAS`` of the installation names others.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from penstock.backends.cpu.interface import NativeModule
from penstock.backends.cpu.variants import VARIANTS, Variant
from penstock.errors import ConfigError
from penstock.hardware import detect

ENVIRONMENT = "PENSTOCK_ISA"

REMEDY = (
    "install a C++20 compiler (g++ 12 or newer, or clang 15 or newer) and run 'pip install .' "
    "in Penstock's source, or choose the slow NumPy backend with --backend reference"
)
_UNTOLD = "/proc/cpuinfo names no features of this CPU"
_HERE = "'pip install .' in Penstock's source on this machine"


def built() -> tuple[Variant, ...]:
    """The variants that this installation has, best first."""
    return tuple(v for v in VARIANTS if importlib.util.find_spec(v.module) is not None)


def runnable(flags: Collection[str] | None = None) -> tuple[str, ...]:
    """Names of the built variants whose instructions this CPU has, best first.

    ``flags`` asks for another CPU. Whether the kernel grants the registers shows only on loading.
    """
    have = detect().isa if flags is None else flags
    return tuple(v.isa for v in built() if v.flags.issubset(have))


def load(isa: str | None = None) -> NativeModule:
    """The module for ``isa``, by default that of ``PENSTOCK_ISA``, by default the best.

    Raises ConfigError where there is none, or where the one asked for cannot run here.
    """
    return _load(isa or os.environ.get(ENVIRONMENT) or None)


def note(isa: str | None = None) -> str | None:
    """Return why this CPU runs a lesser variant than its features suggest; None if it does not.

    A virtual machine that masks features, a CPU between two variants, a kernel that grants no tile
    registers. Raises as :func:`load`.
    """
    return _choose(isa or os.environ.get(ENVIRONMENT) or None).note


def chosen() -> str:
    """Return the variant that runs here, and why that one. Raises as :func:`load`."""
    named = bool(os.environ.get(ENVIRONMENT))
    why = f"as {ENVIRONMENT} says" if named else "the best of this installation that runs here"
    return f"{load().isa}  ({why})"


@dataclass(frozen=True)
class _Choice:
    module: NativeModule
    note: str | None = None


def _load(isa: str | None) -> NativeModule:
    return _choose(isa).module


@functools.cache
def _choose(isa: str | None) -> _Choice:
    available = built()
    if not available:
        raise ConfigError(
            "penstock was installed without its native CPU library, so the cpu backend cannot run; "
            f"{REMEDY}"
        )
    flags = detect().isa
    if isa is not None:
        return _Choice(_load_asked(isa, available, flags))
    refused: list[str] = []
    if not flags and len(available) > 1:
        refused.append(f"{_UNTOLD}; {ENVIRONMENT} names what it runs of {_names(available)}")
    absent: list[str] = []
    for variant in VARIANTS:
        missing = variant.flags - flags
        if missing:
            if variant.own & flags:  # else nobody expects it of this CPU
                refused.append(f"{variant.isa} needs {', '.join(sorted(missing))} too")
        elif variant not in available:
            absent.append(variant.isa)
        else:
            module = _import(variant)
            if module.prepare():
                return _Choice(module, _note(variant, refused, absent))
            refused.append(f"the kernel refuses the {variant.isa} registers to this process")
    if not flags:
        raise ConfigError(
            f"{_UNTOLD}, so it is not known which of {_names(available)} it runs, for which this "
            f"installation has native code; {ENVIRONMENT} names one, as in "
            f"{ENVIRONMENT}={available[-1].isa}"
        )
    raise ConfigError(
        f"this installation has native code for {_names(available)} only, which this CPU does not "
        f"run; {_HERE} adds what it does"
    )


def _note(variant: Variant, refused: list[str], absent: list[str]) -> str | None:
    """Why ``variant`` runs and no better one; None if there is none."""
    why = list(refused)
    if absent:
        why.append(
            f"this installation has none for {', '.join(absent)}; {_HERE} adds "
            f"{'them' if len(absent) > 1 else 'it'}"
        )
    return f"kernels for {variant.isa}: {'; '.join(why)}" if why else None


def _load_asked(isa: str, available: tuple[Variant, ...], flags: frozenset[str]) -> NativeModule:
    variant = next((v for v in VARIANTS if v.isa == isa), None)
    if variant is None:
        runs = _names(tuple(v for v in VARIANTS if v.flags <= flags))
        raise ConfigError(
            f"{ENVIRONMENT}={isa}: there is no such instruction set; this CPU runs {runs}, and "
            f"this installation has native code for {_names(available)}; unset it to choose "
            "the best"
        )
    missing = sorted(variant.flags - flags)
    if missing and flags:  # else who names it knows better
        raise ConfigError(
            f"{ENVIRONMENT}={isa} needs CPU features that this machine lacks: "
            f"{', '.join(missing)}; unset it to choose the best variant"
        )
    if variant not in available:
        raise ConfigError(
            f"{ENVIRONMENT}={isa}: this installation has native code for {_names(available)} only; "
            f"'PENSTOCK_ISAS=native,{isa} pip install .' in Penstock's source adds it"
        )
    module = _import(variant)
    if not module.prepare():
        raise ConfigError(
            f"the kernel refuses the {isa} registers to this process (Linux 5.16 or newer grants "
            f"them); unset {ENVIRONMENT} to choose the best variant"
        )
    return module


def _import(variant: Variant) -> NativeModule:
    try:
        module = importlib.import_module(variant.module)
    except ImportError as error:
        raise ConfigError(
            f"the native module {variant.module} cannot be loaded: {error}; {REMEDY}"
        ) from error
    return cast(NativeModule, module)


def _names(variants: tuple[Variant, ...]) -> str:
    return ", ".join(v.isa for v in variants)

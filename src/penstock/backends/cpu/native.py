"""Choose and load the native module for this machine.

The native runtime is compiled once per instruction set into modules ``_native_<isa>``; the best one
that was built and that this CPU and its kernel can run is loaded. ``PENSTOCK_ISA`` names one
instead, for tests and comparisons.
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
from penstock.errors import ConfigError
from penstock.hardware import detect

ENVIRONMENT = "PENSTOCK_ISA"

REMEDY = (
    "install a C++20 compiler (g++ 12 or newer, or clang 15 or newer) and run "
    "'pip install --force-reinstall --no-cache-dir penstock', "
    "or choose the slow NumPy backend with --backend reference"
)


@dataclass(frozen=True)
class Variant:
    """An instruction set and the CPU flags, in the kernel's spelling, that its code may use."""

    isa: str
    flags: frozenset[str]
    own: frozenset[str] = frozenset()
    """The flags that no lesser variant needs."""

    @property
    def module(self) -> str:
        return f"{__package__}._native_{self.isa}"


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "popcnt"})
_AVX512 = _AVX2 | {
    "avx512f",
    "avx512cd",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
}

_AVX_VNNI = frozenset({"avx_vnni"})
_AMX = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_NEON = frozenset({"fp", "asimd"})
_DOTPROD = frozenset({"fphp", "asimdhp", "asimddp"})

VARIANTS = (
    Variant("amx", _AVX512 | _AMX, _AMX),
    Variant("avx512", _AVX512, _AVX512 - _AVX2),
    Variant("avx_vnni", _AVX2 | _AVX_VNNI, _AVX_VNNI),
    Variant("avx2", _AVX2, _AVX2),
    Variant("dotprod", _NEON | _DOTPROD, _DOTPROD),
    Variant("neon", _NEON, _NEON),
    Variant("baseline", frozenset()),
)
"""Best first; the flags mirror those that CMakeLists.txt compiles with. Those of AArch64 are the
kernel's names for what its option -march names: asimddp is dotprod, fphp and asimdhp are fp16."""


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
            "the native CPU library was not built when penstock was installed, "
            f"so the cpu backend cannot run; {REMEDY}"
        )
    flags = detect().isa
    if isa is not None:
        return _Choice(_load_asked(isa, available, flags))
    refused: list[str] = []
    for variant in VARIANTS:
        lacks = _what_lacks(variant, variant in available, flags)
        if lacks is not None:
            refused += lacks
            continue
        module = _import(variant)
        if module.prepare():
            why = "; ".join(refused)
            return _Choice(module, f"kernels for {variant.isa}: {why}" if refused else None)
        refused.append(f"the kernel refuses the {variant.isa} registers to this process")
    raise ConfigError(
        f"this installation has native code for {_names(available)} only, which this CPU does not "
        f"run; {REMEDY}"
    )


def _what_lacks(variant: Variant, is_built: bool, flags: frozenset[str]) -> list[str] | None:
    """Return why ``variant`` cannot be loaded, for a user who would expect it; None if it can.

    Of a CPU that has none of the features which set a variant apart, nobody expects it.
    """
    missing = variant.flags - flags
    if missing:
        expected = variant.own & flags
        return [f"{variant.isa} needs {', '.join(sorted(missing))} too"] if expected else []
    return None if is_built else [f"this installation has none for {variant.isa}"]


def _load_asked(isa: str, available: tuple[Variant, ...], flags: frozenset[str]) -> NativeModule:
    variant = next((v for v in available if v.isa == isa), None)
    if variant is None:
        raise ConfigError(
            f"{ENVIRONMENT}={isa} names no native variant of this installation; "
            f"there are {_names(available)}"
        )
    missing = sorted(variant.flags - flags)
    if missing:
        raise ConfigError(
            f"{ENVIRONMENT}={isa} needs CPU features that this machine lacks: "
            f"{', '.join(missing)}; unset it to choose the best variant"
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

"""The instruction sets that the native library is compiled for, and what each needs of a CPU.

``csrc/CMakeLists.txt`` asks this module which of them the machine runs that Penstock is installed
on, before any dependency is: what it imports needs the standard library alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from penstock.hardware import detect


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
_I8MM = frozenset({"i8mm", "bf16"})

VARIANTS = (
    Variant("amx", _AVX512 | _AMX, _AMX),
    Variant("avx512", _AVX512, _AVX512 - _AVX2),
    Variant("avx_vnni", _AVX2 | _AVX_VNNI, _AVX_VNNI),
    Variant("avx2", _AVX2, _AVX2),
    Variant("i8mm", _NEON | _DOTPROD | _I8MM, _I8MM),
    Variant("dotprod", _NEON | _DOTPROD, _DOTPROD),
    Variant("neon", _NEON, _NEON),
    Variant("baseline", frozenset()),
)
"""Best first; the flags mirror those that csrc/CMakeLists.txt compiles with. Those of AArch64 are
the kernel's names for what its option -march names: asimddp is dotprod, fphp and asimdhp are fp16.
"""


def runnable_here() -> tuple[str, ...]:
    """Names of the variants that this machine runs, best first, whether they are built or not."""
    flags = detect().isa
    return tuple(
        v.isa for v in VARIANTS if v.flags <= flags and (v.isa != "amx" or _tiles_are_granted())
    )


def _tiles_are_granted() -> bool:
    """Whether Linux lets this process use AMX; the module ``amx`` asks for it as it is loaded."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)

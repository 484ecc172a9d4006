"""Instruction sets that all engines of a comparison are held to: one machine stands for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_LLAMA_X86 = ("AVX", "AVX2", "BMI2", "FMA", "F16C")
_LLAMA_AVX512 = ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")


@dataclass(frozen=True)
class Cap:
    """The most that every engine may use.

    Engines that choose at run time are told by ``variables``; llama.cpp, which chooses when it is
    compiled, has a build of its own for each cap. Each worker reports which instructions its
    engine says that it uses, and one that uses more than the cap is not measured.
    """

    name: str
    """Penstock's name of the instruction set."""
    title: str
    """What the machine that is stood for has."""
    variables: Mapping[str, str]
    llama: tuple[str, ...]
    """The instructions that llama.cpp is compiled with, as its CMake options name them."""
    above: tuple[str, ...]
    """Parts of names that no instruction within the cap has, in small letters."""

    @property
    def llama_options(self) -> tuple[str, ...]:
        """CMake's options of the build."""
        named = tuple(f"-DGGML_{name}=ON" for name in self.llama)
        return ("-DGGML_NATIVE=OFF", *named)

    def excess(self, reported: str) -> str | None:
        """Return what of an engine's report is more than the cap allows; None if nothing is.

        An engine that reports nothing has not shown that it is held to the cap.
        """
        if not reported:
            return "it does not say which instructions it uses"
        words = reported.lower()
        beyond = next((part for part in self.above if part in words), None)
        return None if beyond is None else f"it uses {beyond}: {reported}"


def _variables(penstock: str, onednn: str, aten: str) -> Mapping[str, str]:
    return MappingProxyType(
        {
            "PENSTOCK_ISA": penstock,
            "ONEDNN_MAX_CPU_ISA": onednn,
            "ATEN_CPU_CAPABILITY": aten,
            # MKL's and AOCL's products, which torch and zentorch may call.
            "MKL_ENABLE_INSTRUCTIONS": aten.upper(),
            "AOCL_ENABLE_INSTRUCTIONS": aten,
        }
    )


CAPS: Mapping[str, Cap] = MappingProxyType(
    {
        cap.name: cap
        for cap in (
            Cap(
                "avx512",
                "AVX-512 with VNNI and BF16, without AMX",
                _variables("avx512", "AVX512_CORE_BF16", "avx512"),
                (*_LLAMA_X86, *_LLAMA_AVX512),
                ("amx", "avx10", "with float16"),
            ),
            Cap(
                "avx2",
                "AVX2 without VNNI",
                _variables("avx2", "AVX2", "avx2"),
                _LLAMA_X86,
                ("amx", "avx10", "avx512", "avx-512", "vnni", "dl boost"),
            ),
        )
    }
)
"""The caps by name, that of the most instructions first."""

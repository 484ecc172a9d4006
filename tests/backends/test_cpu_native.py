"""Which variant of the native library runs on made-up CPUs and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.backends.cpu import native, variants
from penstock.errors import ConfigError

FLAGS = {variant.isa: variant.flags for variant in variants.VARIANTS}
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """machine(flags, built, refused): a CPU, an installation, and what its kernel refuses."""

    def make(
        flags: Iterable[str], built: Iterable[str] = FLAGS, refused: Iterable[str] = ()
    ) -> None:
        def module(variant: variants.Variant) -> Any:
            return SimpleNamespace(isa=variant.isa, prepare=lambda: variant.isa not in refused)

        monkeypatch.setattr(native, "detect", lambda: SimpleNamespace(isa=frozenset(flags)))
        monkeypatch.setattr(
            native, "built", lambda: tuple(v for v in variants.VARIANTS if v.isa in built)
        )
        monkeypatch.setattr(native, "_import", module)
        native._choose.cache_clear()

    monkeypatch.delenv(native.ENVIRONMENT, raising=False)
    yield make
    native._choose.cache_clear()


@pytest.mark.parametrize("isa", list(FLAGS))
def test_a_cpu_that_is_just_a_variant_runs_it_without_a_note(machine: Machine, isa: str) -> None:
    machine(FLAGS[isa] | {"sse2", "crc32", "something_new"})
    assert native.load().isa == isa
    assert native.note() is None


@pytest.mark.parametrize(
    ("flags", "isa", "words"),
    [
        # AVX-512 of 2017 to 2019: without BF16, or without VNNI either.
        (
            FLAGS["avx512"] - {"avx512_bf16"},
            "avx2",
            "kernels for avx2: avx512 needs avx512_bf16 too",
        ),
        (
            FLAGS["avx512"] - {"avx512_bf16", "avx512_vnni"},
            "avx2",
            "avx512 needs avx512_bf16, avx512_vnni too",
        ),
        # A virtual machine that masks features of the middle.
        (FLAGS["amx"] - {"amx_bf16"}, "avx512", "amx needs amx_bf16 too"),
        (FLAGS["amx"] - {"fma"}, "baseline", "amx needs fma too; avx512 needs fma too; avx2"),
        ({"avx2", "fma"}, "baseline", "avx2 needs abm, bmi1, bmi2, f16c, popcnt too"),
        ({"fp", "asimd", "asimddp"}, "neon", "dotprod needs asimdhp, fphp too"),
        # Cores with matrix products of bytes alone.
        (FLAGS["i8mm"] - {"bf16"}, "dotprod", "i8mm needs bf16 too"),
    ],
)
def test_a_partly_supported_cpu_falls_to_the_next_and_says_so(
    machine: Machine, flags: frozenset[str], isa: str, words: str
) -> None:
    machine(flags)
    assert native.load().isa == isa
    note = native.note()
    assert note is not None
    assert words in note
    assert "\n" not in note


def test_a_cpu_of_which_nothing_is_told_runs_the_fallback_and_what_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine((), built=["avx2", "baseline"])
    assert native.load().isa == "baseline"
    assert native.note() == (
        "kernels for baseline: /proc/cpuinfo names no features of this CPU; PENSTOCK_ISA names "
        "what it runs of avx2, baseline"
    )
    monkeypatch.setenv(native.ENVIRONMENT, "avx2")
    assert native.load().isa == "avx2"


def test_no_fallback_for_a_cpu_of_which_nothing_is_told(machine: Machine) -> None:
    machine((), built=["dotprod", "neon"])
    with pytest.raises(ConfigError, match=r"not known which of dotprod, neon .*_ISA=neon$"):
        native.load()


def test_a_kernel_that_grants_no_tiles_is_named(machine: Machine) -> None:
    machine(FLAGS["amx"], refused=["amx"])
    assert native.load().isa == "avx512"
    assert native.note() == (
        "kernels for avx512: the kernel refuses the amx registers to this process"
    )


def test_a_variant_that_was_not_built_is_named(machine: Machine) -> None:
    machine(FLAGS["amx"], built=["avx2", "baseline"])
    assert native.load().isa == "avx2"
    note = native.note()
    assert note is not None
    assert note == (
        "kernels for avx2: this installation has none for amx, avx512; 'pip install .' in "
        "Penstock's source on this machine adds them"
    )


def test_a_cpu_that_runs_nothing_of_this_installation(machine: Machine) -> None:
    machine(FLAGS["avx2"], built=["amx", "avx512"])
    with pytest.raises(ConfigError, match=r"native code for amx, avx512 only.* 'pip install \.'"):
        native.load()


def test_nothing_runs_that_the_kernel_refuses(machine: Machine) -> None:
    machine(FLAGS["amx"], built=["amx"], refused=["amx"])
    with pytest.raises(ConfigError, match="amx only"):
        native.load()


@pytest.mark.parametrize(
    ("isa", "flags", "built", "words"),
    [
        ("amx", FLAGS["avx2"], FLAGS, "lacks: amx_bf16, amx_int8, amx_tile, avx512"),
        ("amx", FLAGS["amx"], FLAGS, "the kernel refuses the amx registers"),
        (
            "avx512",
            FLAGS["amx"],
            ["amx", "baseline"],
            "native code for amx, baseline only; 'PENSTOCK_ISAS=native,avx512 pip install .' in "
            "Penstock's source adds it",
        ),
        # To add what this CPU does not run would be of no use.
        ("avx512", FLAGS["avx2"], ["avx2", "baseline"], "lacks: avx512_bf16, .*; unset it"),
        ("neon", FLAGS["amx"], ["amx", "baseline"], "lacks: asimd, fp; unset it"),
        (
            "AVX2",
            FLAGS["avx2"],
            ["baseline"],
            "no such instruction set; this CPU runs avx2, baseline, and this installation has "
            "native code for baseline; unset it",
        ),
    ],
)
def test_the_environment_asks_in_vain_with_the_reason(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    isa: str,
    flags: frozenset[str],
    built: Iterable[str],
    words: str,
) -> None:
    machine(flags, built=built, refused=["amx"])
    monkeypatch.setenv(native.ENVIRONMENT, isa)
    with pytest.raises(ConfigError, match=words) as refusal:
        native.load()
    assert f"{native.ENVIRONMENT}" in str(refusal.value)


def test_what_the_environment_names_runs_without_a_note(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(FLAGS["amx"])
    monkeypatch.setenv(native.ENVIRONMENT, "avx2")
    assert native.load().isa == "avx2"
    assert native.note() is None


def test_this_machine_runs_what_it_runs_though_it_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an installation from source is compiled for."""
    flags = FLAGS["amx"]
    monkeypatch.setattr(variants, "detect", lambda: SimpleNamespace(isa=flags))
    for granted in (True, False):
        monkeypatch.setattr(variants, "_tiles_are_granted", lambda granted=granted: granted)
        assert variants.runnable_here()[0] == ("amx" if granted else "avx512")
    assert variants.runnable_here() == ("avx512", "avx2", "baseline")
    flags = FLAGS["i8mm"]
    assert variants.runnable_here() == ("i8mm", "dotprod", "neon", "baseline")

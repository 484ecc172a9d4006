"""A cap reaches every engine, and one that does not keep to it is not measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from comparison import line_up
from comparison.artifacts import Shape
from comparison.cap import CAPS
from comparison.contender import Contender, Limits
from comparison.environments import Environment, Setup
from comparison.llama_build import LlamaBuild
from comparison.peers import LLAMA_CPP, ONNXRUNTIME, PEERS, PENSTOCK, VLLM, ZENTORCH, Peer
from comparison.process import WorkerError
from comparison.results import Comparison
from comparison.text import Text
from penstock.backends.cpu.variants import VARIANTS
from penstock.bench.machine import Speeds, describe_machine
from workers.onednn_isa import onednn_output, told

TEXT = Text("three ids", [[1, 2, 3]], 1)
AVX2, AVX512 = CAPS["avx2"], CAPS["avx512"]


def test_caps_are_named_as_the_engines_own_variants() -> None:
    assert set(CAPS) <= {variant.isa for variant in VARIANTS}
    for name, cap in CAPS.items():
        assert cap.variables["PENSTOCK_ISA"] == name


@pytest.mark.parametrize(
    ("cap", "reported"),
    [
        ("avx2", "avx2"),
        ("avx2", "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | REPACK = 1 |"),
        ("avx2", "torch AVX2, oneDNN Intel AVX2"),
        ("avx512", "avx512"),
        ("avx512", "CPU : AVX2 = 1 | F16C = 1 | AVX512 = 1 | AVX512_VNNI = 1 | AVX512_BF16 = 1 |"),
        (
            "avx512",
            "torch AVX512, oneDNN Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions "
            "and Intel DL Boost and bfloat16 support",
        ),
    ],
)
def test_what_keeps_to_a_cap(cap: str, reported: str) -> None:
    assert CAPS[cap].excess(reported) is None


@pytest.mark.parametrize(
    ("cap", "reported", "beyond"),
    [
        ("avx2", "avx512", "avx512"),
        ("avx2", "avx_vnni", "vnni"),
        ("avx2", "CPU : AVX2 = 1 | AVX_VNNI = 1 |", "vnni"),
        ("avx2", "torch AVX2, oneDNN Intel AVX2 with Intel DL Boost", "dl boost"),
        ("avx2", "torch AVX2, oneDNN Intel AVX-512 with AVX512BW", "avx512"),
        ("avx512", "amx", "amx"),
        ("avx512", "CPU : AVX512 = 1 | AMX_INT8 = 1 |", "amx"),
        ("avx512", "oneDNN Intel AVX-512 with float16, Intel DL Boost", "with float16"),
        ("avx512", "", "does not say"),
        ("avx2", "torch AVX2, oneDNN unused, own kernels avx512", "avx512"),
        ("avx512", "torch AVX512, oneDNN unused, own kernels amx", "amx"),
    ],
)
def test_what_is_above_a_cap(cap: str, reported: str, beyond: str) -> None:
    excess = CAPS[cap].excess(reported)
    assert excess is not None
    assert beyond in excess


def test_each_cap_has_a_build_of_llama_cpp(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    native, capped = LlamaBuild(tmp_path), LlamaBuild(tmp_path, AVX2)
    (configured,) = (c for c, _ in capped.commands(python) if "-G" in c)
    assert "-DGGML_NATIVE=OFF" in configured
    assert "-DGGML_AVX2=ON" in configured
    assert not any("AVX512" in option or "AMX" in option for option in configured)
    assert "-DGGML_NATIVE=ON" not in configured
    (configured,) = (c for c, _ in LlamaBuild(tmp_path, AVX512).commands(python) if "-G" in c)
    assert "-DGGML_AVX512_BF16=ON" in configured
    assert len({str(build.build) for build in (native, capped)}) == 2
    variables = Environment(LLAMA_CPP, tmp_path).variables(cap=AVX2)
    assert variables["LLAMA_CPP_LIB_PATH"] == str(capped.binaries)
    assert Environment(VLLM, tmp_path).variables(cap=AVX2)["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert "ONEDNN_MAX_CPU_ISA" not in Environment(VLLM, tmp_path).variables()


@pytest.mark.parametrize(("reported", "beyond"), [("avx2", None), ("avx512", "it uses avx512")])
def test_an_engine_above_the_cap_is_not_measured(
    reported: str, beyond: str | None, fake_engine: Path, tmp_path: Path
) -> None:
    class Fake(Contender):
        def command(self) -> list[str]:
            return [sys.executable, str(fake_engine)]

    peer = Peer("fake", {"int4": f"isa {reported}"}, "fake")
    limits = Limits((0,), 4, 64, kv_bytes=0, clients=1, run_seconds=30, cap=AVX2)
    contender = Fake(peer, "int4", False, Shape("tiny", tmp_path, tmp_path), limits)
    try:
        if beyond is None:
            assert contender.perplexity(TEXT) > 0
        else:
            with pytest.raises(WorkerError, match=f"not held to avx2: {beyond}"):
                contender.perplexity(TEXT)
    finally:
        contender.unload()


def test_what_cannot_be_capped_or_is_not_built_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_up, "cpu_vendor", lambda: "GenuineIntel")
    (tmp_path / "environments").mkdir()
    for peer in PEERS.values():
        there, setup = Environment(peer, tmp_path), Setup(peer.name, {})
        there.record.write_text(json.dumps(setup.__dict__))
        if peer is not PENSTOCK:
            there.python.parent.mkdir(parents=True)
            there.python.touch()
    comparison = Comparison(
        date="", command="", shape="", machine=describe_machine(Speeds(), 1), cases=[]
    )
    limits = Limits((0,), 4, 64, kv_bytes=0, clients=1, run_seconds=30, cap=AVX2)
    engines = [LLAMA_CPP.name, ONNXRUNTIME.name, ZENTORCH.name]
    shape = Shape("tiny", tmp_path, tmp_path)
    assert line_up.line_up(engines, ["int4"], shape, limits, [], comparison) == []
    reasons = {absence.engine: absence.reason for absence in comparison.absences}
    assert reasons["llama.cpp"] == "it is not built for avx2: run setup --isa avx2"
    assert "cannot be held to avx2" in reasons["onnxruntime-genai"]
    assert reasons["vllm-zentorch"] == "it is for CPUs of AuthenticAMD"
    monkeypatch.setattr(line_up, "cpu_vendor", lambda: "AuthenticAMD")
    comparison.absences.clear()
    limits = replace(limits, cap=None)
    line_up.line_up(engines, ["int4"], shape, limits, [], comparison)
    assert all("its model is not there" in absence.reason for absence in comparison.absences)


def test_what_onednn_tells() -> None:
    lines = "onednn_verbose,v1,info,cpu,runtime:OpenMP\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\n"
    assert told(lines) == "Intel AVX2"
    assert told("") == "unused"


def test_a_product_that_fails_after_it_told_the_instructions_has_told_them() -> None:
    output = onednn_output(
        "print('onednn_verbose,v1,info,cpu,isa:Intel AVX2'); raise SystemExit(1)"
    )
    assert told(output) == "Intel AVX2"


def test_a_product_that_fails_and_tells_nothing_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="failed: ValueError: no such primitive"):
        onednn_output("raise ValueError('no such primitive')")

"""A whole run with fake workers: what is written, said and returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from gpu.device import FIELDS, Device, DeviceMonitor, Reading, before, fixed, read
from gpu.report import Document
from gpu.results import Ceilings, Compiled, Decode, Engine, OpTime, Ready, StepTimes
from gpu.run import Places, Run, run
from gpu.worker import Order
from gpu.workload import Size

from penstock.errors import ConfigError
from penstock.gpu import Gpu, GpuSearch

DEVICE = Device(
    name="NVIDIA Test 100",
    capability="9.0",
    multiprocessors=100,
    memory_bytes=80 << 30,
    memory_free_bytes=79 << 30,
    l2_bytes=50 << 20,
    cuda="12.8",
    fixed={"driver_version": "580.1"},
    before={"power.draw": Reading(least=70, median=70, most=70, count=1)},
    packages={"torch": "2.9"},
)
CEILINGS = Ceilings(
    read_bytes_per_s=2e12, matrix_flops=4e14, read_span_bytes=1 << 30, matrix_size=8192
)
COMPILED = Compiled(kernels=5, left_out=1, seconds=3.0, processes=2)


def engine(step_s: float) -> Engine:
    decode = [
        Decode(
            batch=batch,
            context=1024,
            step_s=step_s,
            step_s_median=step_s,
            weight_bytes=15 * 10**9,
            kv_bytes=10**9,
            device_s=step_s,
        )
        for batch in (1, 64)
    ]
    ops = [OpTime(name="linear o", launches=32, seconds=0.008, weight_bytes=8 * 10**9)]
    return Engine(
        ready=Ready(loaded_s=1, first_token_s=2),
        settings={},
        decode=decode,
        steps=[StepTimes(step="decode, batch 1", ops=ops)],
    )


@dataclass
class Monitoring:
    readings: dict[str, Reading] = field(
        default_factory=lambda: {"clocks.sm": Reading(least=1500, median=1900, most=1980, count=9)}
    )


@contextmanager
def monitoring() -> Iterator[Monitoring]:
    yield Monitoring()


def measured(tmp_path: Path, worker: Any) -> tuple[int, Document, str]:
    asked = Run(
        measures=("decode", "ops"),
        size=Size(),
        model=Path("/models/llama-3.1-8b"),
        stories=None,
        seconds=60,
        command="python benchmarks/gpu.py",
    )
    places = Places(root=tmp_path, script=tmp_path / "none.py", results=tmp_path / "results")
    code = run(asked, DEVICE, places, monitoring, worker)
    (data,) = places.results.glob("*.json")
    (text,) = places.results.glob("*.md")
    assert data.stem == text.stem
    assert data.name.startswith("nvidia-test-100-llama-3.1-8b-20")
    document = msgspec.json.decode(data.read_bytes(), type=Document)
    return code, document, text.read_text(encoding="utf-8")


def test_a_run_that_meets_its_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders: list[Order] = []

    def worker(order: Order, seconds: float) -> bytes:
        orders.append(Order.decode(order.encode()))
        if order.job.kind == "compile":
            return msgspec.json.encode(COMPILED)
        return msgspec.json.encode(CEILINGS if order.job.kind == "ceilings" else engine(0.0095))

    code, document, text = measured(tmp_path, worker)
    assert code == 0
    assert [order.job.name for order in orders] == ["ceilings", "compile", "bf16"]
    assert orders[2].size == Size()
    assert document.results.ceilings == CEILINGS
    assert [figure.verdict for figure in document.figures] == ["met", "met"]
    assert document.during["bf16"]["clocks.sm"].most == 1980
    row = "| decode, batch 1, of the read bandwidth | 84.2 % | >= 80.0 % | met |  |"
    assert row in text
    assert "| bf16 | 64 | 1024 | 9.500 ms |" in text
    assert "| linear o | 32 | 8,000 us | 100.0 % | 1,000 |" in text
    assert "1900 (1500 to 1980)" in text
    assert str(tmp_path) not in text
    assert "/models" not in text
    assert "decode, batch 64, of the read bandwidth" in capsys.readouterr().out


def test_what_fails_is_written_and_the_exit_code_says_so(tmp_path: Path) -> None:
    def worker(order: Order, seconds: float) -> bytes:
        if order.job.kind == "ceilings":
            raise RuntimeError("ended with 1: no memory")
        if order.job.kind == "compile":
            return msgspec.json.encode(COMPILED)
        return msgspec.json.encode(engine(0.02))

    code, document, text = measured(tmp_path, worker)
    assert code == 1
    assert document.results.problems == {"ceilings": "ended with 1: no memory"}
    assert "| - | >= 80.0 % | not measured | ceilings: ended with 1: no memory |" in text
    assert "- ceilings: ended with 1: no memory" in text
    assert "| bf16 | 1 | 1024 | 20.000 ms |" in text  # what was measured is still told


def test_readings_of_nvidia_smi() -> None:
    text = "1500, 2619, 300.5, 40, 99, 1000\n1980, 2619, 650.25, 60, 100, [N/A]\n1980, 26"
    found = read(text)
    assert found["clocks.sm"] == Reading(least=1500, median=1740, most=1980, count=2)
    assert found["memory.used"].count == 1
    assert read("") == {}
    assert list(found) == list(FIELDS)


def test_no_nvidia_smi_is_no_error(tmp_path: Path) -> None:
    def absent(command: Any) -> str:
        raise FileNotFoundError(command[0])

    assert before("0", absent) == {}
    assert fixed("0", absent) == {}
    with DeviceMonitor("0", which=lambda name: None) as monitor:
        pass
    assert monitor.readings == {}


def test_nvidia_smi_is_asked_for_one_device() -> None:
    asked = []

    def answer(command: Any) -> str:
        asked.append(command)
        return "580.1, 700.00, 1980, 2619\n"

    assert fixed("GPU-12", answer)["power.limit"] == "700.00"
    assert asked[0][:2] == ("nvidia-smi", "--id=GPU-12")


def test_a_watch_reads_until_its_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nwhile :; do echo 1500, 2619, 300, 40, 99, 1; sleep 0.1; done\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with DeviceMonitor("0") as monitor:
        assert monitor._output is not None
        import time

        end = time.monotonic() + 30
        while monitor._output.seek(0, 2) == 0 and time.monotonic() < end:
            time.sleep(0.05)
    assert monitor.readings["power.draw"].median == 300


def test_without_a_gpu_one_line_says_so(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(command.RESULTS.parent.rglob("*.json"))
    monkeypatch.setattr(command, "find_gpu", lambda memory: GpuSearch())
    assert command.main([]) == command.NO_GPU == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "there is no GPU to measure: no NVIDIA driver is found" in error
    assert sorted(command.RESULTS.parent.rglob("*.json")) == files


def test_an_interpreted_device_is_not_measured(command: ModuleType) -> None:
    with pytest.raises(ConfigError, match="TRITON_INTERPRET is set"):
        command.require_gpu(GpuSearch(Gpu("Triton's interpreter", 1, 1, 1, (8, 0), True)))
    with pytest.raises(ConfigError, match="too old"):
        command.require_gpu(GpuSearch(problem="the driver is too old"))
    command.require_gpu(GpuSearch(Gpu("H100", 1, 1, 1, (9, 0))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "speed"], "--only takes"),
        (["--minutes", "0"], "--minutes must be positive"),
        (["--stories", "nowhere"], "no SOURCE.md"),
    ],
)
def test_bad_options_are_refused(
    command: ModuleType, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_gpu", lambda memory: GpuSearch())
    with pytest.raises(ConfigError, match=message):
        command.main(arguments)

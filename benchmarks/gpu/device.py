"""Which device, driver and libraries a run had, and the device's clocks and power beside it."""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from statistics import median
from types import TracebackType
from typing import IO

import msgspec
import torch

import penstock

FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "memory.used",
)
"""What changes while a GPU works: MHz, MHz, W, degrees C, percent, MiB."""
_FIXED_FIELDS = ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem")
_PACKAGES = ("torch", "triton", "transformers", "numpy", "safetensors")
_INTERVAL_MS = 500

Run = Callable[[Sequence[str]], str]
"""Runs a command and gives what it writes; raises OSError or SubprocessError."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over a stretch of time, in the unit of FIELDS; what had no number is left out"""

    least: float
    median: float
    most: float
    count: int


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU and the software on it."""

    name: str
    capability: str
    multiprocessors: int
    memory_bytes: int
    memory_free_bytes: int
    l2_bytes: int
    cuda: str
    fixed: dict[str, str]
    """What nvidia-smi says and does not change; empty where there is none."""
    before: dict[str, Reading]
    packages: dict[str, str]


def describe(run: Run | None = None) -> Device:
    """The current device of torch."""
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
    identity = device_id()
    return Device(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        memory_bytes=total,
        memory_free_bytes=free,
        l2_bytes=properties.L2_cache_size,
        cuda=torch.version.cuda or "unknown",
        fixed=fixed(identity, run or _run),
        before=before(identity, run or _run),
        packages=packages(),
    )


def no_device() -> Device:
    """What a dry run runs on."""
    return Device(
        name="none",
        capability="9.0",
        multiprocessors=1,
        memory_bytes=0,
        memory_free_bytes=0,
        l2_bytes=0,
        cuda="none",
        fixed={},
        before={},
        packages=packages(),
    )


def device_id() -> str:
    """What nvidia-smi calls the device that torch calls 0, whatever CUDA_VISIBLE_DEVICES says."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", "0"))
    return uuid if uuid == "0" or uuid.startswith("GPU-") else f"GPU-{uuid}"


def packages() -> dict[str, str]:
    """Versions of what a run depends on; ``absent`` where something is not installed."""
    versions = {"penstock": penstock.__version__}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def fixed(identity: str, run: Run) -> dict[str, str]:
    """Driver and limits, as nvidia-smi writes them; empty where it is absent or fails."""
    try:
        text = run(_query(identity, _FIXED_FIELDS))
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(_FIXED_FIELDS, values, strict=False))


def before(identity: str, run: Run) -> dict[str, Reading]:
    """The readings of one moment; empty where nvidia-smi is absent or fails."""
    try:
        return read(run(_query(identity, FIELDS)))
    except (OSError, subprocess.SubprocessError):
        return {}


def read(text: str) -> dict[str, Reading]:
    """Readings of lines as nvidia-smi writes them; what is no number, as ``[N/A]``, is left out."""
    columns: list[list[float]] = [[] for _ in FIELDS]
    for row in csv.reader(text.splitlines()):
        if len(row) != len(FIELDS):  # a line that was being written when it was ended
            continue
        for column, value in zip(columns, row, strict=True):
            try:
                column.append(float(value))
            except ValueError:
                continue
    return {
        name: Reading(least=min(v), median=median(v), most=max(v), count=len(v))
        for name, v in zip(FIELDS, columns, strict=True)
        if v
    }


class DeviceMonitor:
    """Readings while a block runs, two a second by one nvidia-smi; none where that is absent."""

    def __init__(self, identity: str, which: Callable[[str], str | None] = shutil.which) -> None:
        self.readings: dict[str, Reading] = {}
        self._command = (*_query(identity, FIELDS), f"--loop-ms={_INTERVAL_MS}")
        self._there = which("nvidia-smi") is not None
        self._process: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None

    def __enter__(self) -> DeviceMonitor:
        if self._there:
            self._output = tempfile.TemporaryFile("w+", encoding="utf-8")
            self._process = subprocess.Popen(
                self._command, stdout=self._output, stderr=subprocess.DEVNULL, text=True
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None or self._output is None:
            return
        self._process.terminate()
        self._process.wait()
        with self._output as output:
            output.seek(0)
            self.readings = read(output.read())


def _query(identity: str, fields: Sequence[str]) -> tuple[str, ...]:
    names = ",".join(fields)
    return (
        "nvidia-smi",
        f"--id={identity}",
        f"--query-gpu={names}",
        "--format=csv,noheader,nounits",
    )


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

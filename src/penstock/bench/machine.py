"""Measures the machine's bandwidth and peak arithmetic beside a benchmark, to judge its figures
by."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import msgspec

import penstock
from penstock.errors import PenstockError
from penstock.hardware import Hardware, detect

_REPORTED_PACKAGES = ("penstock", "numpy", "msgspec", "tokenizers", "safetensors")
_LEAST_SPAN = 256 << 20
_REPORTED_ISA = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16"),
)


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """Best of several measurements, all threads together; None: not measurable here."""

    read_bandwidth_bytes_per_s: float | None = None
    bf16_flops: float | None = None
    int8_ops: float | None = None
    unmeasured: str | None = None
    """Why nothing was measured; None if it was."""

    def best(self, other: Speeds) -> Speeds:
        """The higher of each, for measurements before and after a run on a shared machine."""

        def higher(a: float | None, b: float | None) -> float | None:
            return max((v for v in (a, b) if v is not None), default=None)

        return Speeds(
            read_bandwidth_bytes_per_s=higher(
                self.read_bandwidth_bytes_per_s, other.read_bandwidth_bytes_per_s
            ),
            bf16_flops=higher(self.bf16_flops, other.bf16_flops),
            int8_ops=higher(self.int8_ops, other.int8_ops),
            unmeasured=self.unmeasured or other.unmeasured,
        )


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and software of a benchmark."""

    cpu_model: str
    architecture: str
    isa: list[str]
    physical_cores: int  # that this process may use
    logical_cores: int
    cpu_quota: float | None
    memory_bytes: int
    caches: dict[str, int]  # bytes by level
    load_average_1m: float  # runnable tasks besides ours make every figure lower
    threads: int
    read_bandwidth_bytes_per_s: float | None
    bf16_flops: float | None
    int8_ops: float | None
    unmeasured: str | None
    kernel: str
    python: str
    packages: dict[str, str]


def measure_speeds(threads: int) -> Speeds:
    """Read bandwidth and peak arithmetic of the native kernels' own threads; takes seconds."""
    from penstock.backends.cpu import measure

    try:
        return Speeds(
            read_bandwidth_bytes_per_s=measure.measure_read_bandwidth(_span(detect()), threads),
            bf16_flops=measure.measure_bf16_flops(threads),
            int8_ops=measure.measure_int8_ops(threads) or None,  # 0: no such instruction
        )
    except PenstockError as error:
        return Speeds(unmeasured=str(error))


def _span(hardware: Hardware) -> int:
    """Bytes to read so that caches hardly help, without taking memory that others need."""
    largest = max((cache.size for cache in hardware.caches), default=0)
    return max(_LEAST_SPAN, min(4 * largest, hardware.memory_available // 8))


def describe_machine(speeds: Speeds, threads: int, hardware: Hardware | None = None) -> Machine:
    """``speeds`` with everything else that a reader needs to judge them."""
    h = hardware or detect()
    return Machine(
        cpu_model=h.cpu_model,
        architecture=h.architecture,
        isa=[flag for flag in _REPORTED_ISA if flag in h.isa],
        physical_cores=h.physical_cores,
        logical_cores=h.logical_cores,
        cpu_quota=h.cpu_quota,
        memory_bytes=h.memory_total,
        caches={f"L{cache.level}": cache.size for cache in h.caches},
        load_average_1m=os.getloadavg()[0],
        threads=threads,
        read_bandwidth_bytes_per_s=speeds.read_bandwidth_bytes_per_s,
        bf16_flops=speeds.bf16_flops,
        int8_ops=speeds.int8_ops,
        unmeasured=speeds.unmeasured,
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: _version(name) for name in _REPORTED_PACKAGES},
    )


def _version(package: str) -> str:
    """The installed version; of a source tree that is not installed, its own word."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return penstock.__version__ if package == "penstock" else "not installed"

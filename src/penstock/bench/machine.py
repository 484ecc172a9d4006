"""Measures the machine's bandwidth and peak arithmetic beside a benchmark, to judge its figures
by."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import msgspec

import penstock
from penstock.backends.cpu import measure, native
from penstock.backends.cpu.measure import Ceiling
from penstock.errors import ConfigError, PenstockError
from penstock.hardware import Hardware, detect

_REPORTED_PACKAGES = ("penstock", "numpy", "msgspec", "tokenizers", "safetensors")
_LEAST_SPAN = 256 << 20
_SPARE = 64 << 20
"""Bytes that stay free beside what is read: a control group ends who takes its last."""
_REPORTED_ISA = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16"),
)


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """What all threads together can do at most; None: not measurable here."""

    read: Ceiling | None = None  # bytes
    f32: Ceiling | None = None  # operations
    bf16: Ceiling | None = None
    int8: Ceiling | None = None
    unmeasured: str | None = None
    """Why nothing was measured, or reading was not; None if it was."""

    def best(self, other: Speeds) -> Speeds:
        """The higher of each, for measurements before and after a run on a shared machine."""

        def higher(a: Ceiling | None, b: Ceiling | None) -> Ceiling | None:
            return max((c for c in (a, b) if c is not None), key=lambda c: c.rate, default=None)

        read = higher(self.read, other.read)
        return Speeds(
            read=read,
            f32=higher(self.f32, other.f32),
            bf16=higher(self.bf16, other.bf16),
            int8=higher(self.int8, other.int8),
            unmeasured=None if read is not None else self.unmeasured or other.unmeasured,
        )


class Spreads(msgspec.Struct, frozen=True, kw_only=True):
    """How much less the third best measurement of each speed was than the best, as a part of it."""

    read_bandwidth: float | None = None
    f32: float | None = None
    bf16: float | None = None
    int8: float | None = None


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
    f32_flops: float | None = None
    bf16_flops: float | None
    int8_ops: float | None
    spreads: Spreads = Spreads()
    unmeasured: str | None
    kernels: str | None = None
    """The variant of the native library, whose instructions the peaks are of; None where nothing
    was measured, and in results from before it was kept."""
    kernel: str
    python: str
    packages: dict[str, str]

    def unknown(self) -> Machine:
        """Return another machine, of which nothing was measured."""
        return msgspec.structs.replace(
            self, read_bandwidth_bytes_per_s=None, f32_flops=None, bf16_flops=None, int8_ops=None
        )

    def among(self, ranks: int, stages: int = 1) -> Machine:
        """Return the machine with what a process has of its speeds: all ``ranks`` compute at once,
        and of ``stages``, among which threads are divided, one in turn."""
        at_once = min(self.threads, self.logical_cores)
        computes = min(self.threads / stages / at_once, 1.0) / ranks

        def part(speed: float | None, share: float) -> float | None:
            return None if speed is None else speed * share

        return msgspec.structs.replace(
            self,
            read_bandwidth_bytes_per_s=part(self.read_bandwidth_bytes_per_s, 1 / ranks),
            f32_flops=part(self.f32_flops, computes),
            bf16_flops=part(self.bf16_flops, computes),
            int8_ops=part(self.int8_ops, computes),
        )


def measure_speeds(threads: int) -> Speeds:
    """Read bandwidth and peak arithmetic of the native kernels' own threads; takes seconds.

    Of more threads than CPUs, so many are measured as there are CPUs: others would be measured
    while these wait for them, and a CPU would count twice.
    """
    hardware = detect()
    at_once = min(threads, hardware.logical_cores)
    try:
        peaks = Speeds(
            f32=measure.f32(at_once), bf16=measure.bf16(at_once), int8=measure.int8(at_once)
        )
    except PenstockError as error:
        return Speeds(unmeasured=str(error))
    try:
        return msgspec.structs.replace(peaks, read=_reading(at_once, hardware))
    except PenstockError as error:
        return msgspec.structs.replace(peaks, unmeasured=str(error))


def measure_reading(threads: int) -> Ceiling:
    """Read bandwidth alone, of so many threads as :func:`measure_speeds` takes; a third of a second
    on a quiet machine. Raises ConfigError where there is no native library, or too little memory.
    """
    hardware = detect()
    return _reading(min(threads, hardware.logical_cores), hardware)


def _reading(threads: int, hardware: Hardware) -> Ceiling:
    return measure.reading(_span(hardware), threads)


def _span(hardware: Hardware) -> int:
    """Bytes to read so that caches hardly help, without taking memory that others need. Raises
    ConfigError where there are too few."""
    available = hardware.memory_available
    if hardware.memory_total and available < _LEAST_SPAN + _SPARE:
        raise ConfigError(
            f"reading is measured over {_LEAST_SPAN >> 20} MiB, and only {available >> 20} MiB of "
            "memory are free; a smaller --kv-cache-bytes leaves more"
        )
    return max(_LEAST_SPAN, min(8 * hardware.last_level_bytes, available // 8))


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
        read_bandwidth_bytes_per_s=_rate(speeds.read),
        f32_flops=_rate(speeds.f32),
        bf16_flops=_rate(speeds.bf16),
        int8_ops=_rate(speeds.int8),
        spreads=Spreads(
            read_bandwidth=_spread(speeds.read),
            f32=_spread(speeds.f32),
            bf16=_spread(speeds.bf16),
            int8=_spread(speeds.int8),
        ),
        unmeasured=speeds.unmeasured,
        kernels=None if speeds.f32 is None and speeds.read is None else native.load().isa,
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: _version(name) for name in _REPORTED_PACKAGES},
    )


def _rate(ceiling: Ceiling | None) -> float | None:
    return None if ceiling is None else ceiling.rate


def _spread(ceiling: Ceiling | None) -> float | None:
    return None if ceiling is None else ceiling.spread


def _version(package: str) -> str:
    """The installed version; of a source tree that is not installed, its own word."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return penstock.__version__ if package == "penstock" else "not installed"

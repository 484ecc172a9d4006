"""Who takes part in a comparison, on which processors; what cannot is named with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comparison.artifacts import Shape
from comparison.cap import Cap
from comparison.cases import Case
from comparison.contender import Contender, Limits
from comparison.environments import Environment
from comparison.llama_build import LlamaBuild
from comparison.peers import LLAMA_CPP, PEERS, PENSTOCK, PRECISIONS, Peer, Precision
from comparison.results import Comparison, EngineRecord
from penstock.errors import ConfigError
from penstock.hardware import Hardware


def line_up(
    engines: Sequence[str],
    precisions: Sequence[Precision],
    shape: Shape,
    limits: Limits,
    cases: Sequence[Case],
    comparison: Comparison,
) -> list[Contender]:
    """Everything that can be measured; what cannot is written down with the reason."""
    contenders = []
    served = any(case.over_http for case in cases)
    in_process = any(not case.over_http for case in cases)
    for precision in precisions if shape.file is None else ("file",):
        for name in dict.fromkeys([PENSTOCK.name, *engines]):
            peer = PEERS[name]
            reason = _obstacle(peer, precision, shape, limits.cap)
            if reason is not None:
                comparison.leave_out(name, precision, None, reason)
                continue
            comparison.engines.append(
                EngineRecord(
                    engine=name,
                    precision=precision,
                    versions=Environment(peer, shape.work).state().versions,
                    settings={},
                    artifact_bytes=shape.artifact_bytes(peer, precision),
                )
            )
            if in_process:
                contenders.append(Contender(peer, precision, False, shape, limits))
            if served and peer.server is not None:
                contenders.append(Contender(peer, precision, True, shape, limits))
            elif served:
                why = peer.missing.get("http", "it has no server here")
                comparison.leave_out(name, precision, "http", why)
    return contenders


def _obstacle(peer: Peer, precision: str, shape: Shape, cap: Cap | None) -> str | None:
    """Why a peer cannot run a precision at all; None if nothing is in the way."""
    known = next((each for each in PRECISIONS if each == precision), None)
    if shape.file is not None and not peer.reads_gguf:
        return "reads no GGUF"
    if shape.file is None and (known is None or known not in peer.artifacts):
        return peer.missing.get(precision, "not supported")
    if cap is not None and cap.name in peer.uncapped:
        return f"it cannot be held to {cap.name}: {peer.uncapped[cap.name]}"
    if peer.vendor is not None and peer.vendor != cpu_vendor():
        return f"it is for CPUs of {peer.vendor}"
    state = Environment(peer, shape.work).state()
    if state.error is not None:
        return state.error
    if cap is not None and peer is LLAMA_CPP and not LlamaBuild(shape.work, cap).done:
        return f"it is not built for {cap.name}: run setup --isa {cap.name}"
    if known is not None and shape.file is None and not shape.artifact(peer, known).exists():
        return "its model is not there: run checkpoints, and see its log if it failed"
    return None


def cpu_vendor(path: Path = Path("/proc/cpuinfo")) -> str:
    """As the CPU names it, such as GenuineIntel; empty where it does not."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            return value.strip()
    return ""


def one_per_core(threads: int, hardware: Hardware) -> tuple[int, ...]:
    """Return a logical processor of each of so many physical cores, ascending: of those that
    Penstock itself would take.

    Raises ConfigError where this process may use fewer.
    """
    cores = hardware.physical_cores
    if threads > cores:
        raise ConfigError(f"--threads {threads}: this process may use {cores} physical cores")
    enough = threads <= len(hardware.even_cpus)
    return tuple(sorted((hardware.even_cpus if enough else hardware.placement)[:threads]))

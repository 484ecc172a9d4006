"""Turns what the jobs measured into the figures that have goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from gpu import utilization
from gpu.goals import Figure, Goal, Unit
from gpu.jobs import LATENTS
from gpu.results import Blocks, Ceilings, ChunkStep, Decode, Engine, Results

T = TypeVar("T")

HOST_BATCH = 256
DECODE_BATCHES = (1, 64)


class _Missing(Exception):
    """A value that a figure is made of was not measured; its text says which, and why."""


def figures(results: Results, measures: Sequence[str]) -> list[Figure]:
    """The figures of the measures that were asked for, in the order of the goals."""
    return [figure for name in measures if name in _MAKERS for figure in _MAKERS[name](results)]


def _figure(
    name: str, unit: Unit, goal: Goal | None, value: Callable[[], float], note: str = ""
) -> Figure:
    try:
        return Figure(name=name, unit=unit, value=value(), goal=goal, note=note)
    except _Missing as missing:
        return Figure(name=name, unit=unit, value=None, goal=goal, note=str(missing))


def _checks(results: Results) -> list[Figure]:
    none = Goal("<=", 0)

    def failed() -> float:
        return _need(results, "checks", results.checks).failed

    def differing() -> float:
        return 0 if _need(results, "checks", results.checks).story == "as published" else 1

    story = results.checks.story if results.checks else ""
    figures = [_figure("tests that fail on the device", "count", none, failed)]
    if not story.startswith("not run"):
        figures.append(_figure("texts that differ from the published", "count", none, differing))
    return figures


def _decode(results: Results) -> list[Figure]:
    def share(batch: int) -> float:
        return utilization.of_bandwidth(_decode_of(results, "bf16", batch), _bandwidth(results))

    goals = {1: 0.80, 64: 0.70}
    return [
        _figure(
            f"decode, batch {batch}, of the read bandwidth",
            "share",
            Goal(">=", goals[batch]),
            partial(share, batch),
        )
        for batch in DECODE_BATCHES
    ]


def _prefill(results: Results) -> list[Figure]:
    def share() -> float:
        run = _need(results, "bf16", _engine(results, "bf16").prefill, "prefill")
        return utilization.of_matrix_rate(run, _ceilings(results).matrix_flops)

    return [_figure("prefill, of the bf16 matrix rate", "share", Goal(">=", 0.55), share)]


def _quantized(results: Results) -> list[Figure]:
    def ratio(name: str) -> float:
        bf16, other = _decode_of(results, "bf16", 1), _decode_of(results, name, 1)
        return other.tokens_per_s / bf16.tokens_per_s

    goals = {"int4": 2.2, "int8": 1.5}
    return [
        _figure(
            f"{name} decode, batch 1, times as fast as bf16",
            "times",
            Goal(">=", goal),
            partial(ratio, name),
        )
        for name, goal in goals.items()
    ]


def _blocks(results: Results) -> list[Figure]:
    """A product of one row waits for the matrix alone."""

    def found() -> Blocks:
        return _need(results, "blocks", results.blocks)

    def share(name: str) -> float:
        (run,) = (each for each in found().products if (each.format, each.rows) == (name, 1))
        return run.weight_bytes / _bandwidth(results) / run.seconds

    figures = [
        _figure(
            "products with blocks: the largest error, in roundings of all terms",
            "times",
            Goal("<=", 1),
            lambda: max(each.error for each in found().products),
        ),
        _figure(
            "products with blocks: formats whose rows depend on others",
            "count",
            Goal("<=", 0),
            lambda: len({each.format for each in found().products if not each.rows_alike}),
        ),
    ]
    names = [] if results.blocks is None else [each.format for each in results.blocks.products]
    return figures + [
        _figure(
            f"a product of one row with {name}, of the read bandwidth",
            "share",
            None,
            partial(share, name),
        )
        for name in dict.fromkeys(names)
    ]


def _host(results: Results) -> list[Figure]:
    def share() -> float:
        return utilization.of_host(_need(results, "bf16", _engine(results, "bf16").host, "host"))

    name = f"host overhead at batch {HOST_BATCH}, of a step"
    return [_figure(name, "share", Goal("<", 0.03), share)]


def _chunk(results: Results) -> list[Figure]:
    def run() -> ChunkStep:
        found = _need(results, "bf16", _engine(results, "bf16").chunk, "chunk")
        if found.padded is None:
            raise _Missing("bf16, chunk: no graph holds the step")
        return found

    name = "a chunk of a prompt beside sequences that decode, op by op, times as long as by a graph"
    return [
        _figure(
            f"{name}: step", "times", Goal(">=", 1), lambda: run().launched_s / run().replayed_s
        ),
        _figure(
            f"{name}: host",
            "times",
            Goal(">=", 5),
            lambda: run().launched_host_s / run().replayed_host_s,
        ),
    ]


def _itl(results: Results) -> list[Figure]:
    def growth() -> float:
        places = _engine(results, "bf16").places
        if len(places) < 2:
            raise _Missing(_why(results, "bf16", "itl"))
        return abs(utilization.growth(places, _bandwidth(results)))

    name = "time between tokens, change with position beyond its KV bytes"
    return [_figure(name, "share", Goal("<=", 0.05), growth)]


def _deterministic(results: Results) -> list[Figure]:
    def decode(batch: int) -> float:
        ours, theirs = (_decode_of(results, name, batch) for name in ("bf16", "cublas"))
        return utilization.cost(ours.step_s, theirs.step_s)

    def prefill() -> float:
        ours, theirs = (
            _need(results, name, _engine(results, name).prefill, "prefill")
            for name in ("bf16", "cublas")
        )
        return utilization.cost(ours.seconds, theirs.seconds)

    goal, what = Goal("<", 0.10), "deterministic costs, over cuBLAS"
    made = [
        _figure(f"{what}: decode, batch {batch}", "share", goal, partial(decode, batch))
        for batch in DECODE_BATCHES
    ]
    return [*made, _figure(f"{what}: prefill", "share", goal, prefill)]


def _experts(results: Results) -> list[Figure]:
    """Bytes are of the experts that a batch has, as if they were drawn evenly."""

    def share(batch: int) -> float:
        run = _decode_of(results, "experts", batch)
        return utilization.of_bandwidth(run, _bandwidth(results))

    def ratio() -> float:
        ours, other = (_decode_of(results, each, 1) for each in ("experts_int4", "experts"))
        return ours.tokens_per_s / other.tokens_per_s

    def matrix_share() -> float:
        run = _need(results, "experts", _engine(results, "experts").prefill, "prefill")
        return utilization.of_matrix_rate(run, _ceilings(results).matrix_flops)

    what = "a mixture of experts"
    decode = [
        _figure(
            f"{what}: decode, batch {batch}, of the read bandwidth",
            "share",
            None,
            partial(share, batch),
        )
        for batch in DECODE_BATCHES
    ]
    return [
        *decode,
        _figure(f"{what}: int4 decode, batch 1, times as fast as bf16", "times", None, ratio),
        _figure(f"{what}: prefill, of the bf16 matrix rate", "share", None, matrix_share),
    ]


def _ready(results: Results) -> list[Figure]:
    def seconds(name: str) -> float:
        return _engine(results, name).ready.first_token_s

    return [
        _figure(
            f"process start to first token, {which}",
            "s",
            None,
            partial(seconds, name),
            "with random weights, which are made while they are loaded",
        )
        for name, which in (("bf16", "first engine"), ("again", "another start"))
    ]


def _latents(results: Results) -> list[Figure]:
    def share(batch: int) -> float:
        return utilization.of_bandwidth(_decode_of(results, "latents", batch), _bandwidth(results))

    note = f"the shape of {LATENTS}; latents are read once for all heads"
    return [
        _figure(
            f"decode over latents, batch {batch}, of the read bandwidth",
            "share",
            None,
            partial(share, batch),
            note,
        )
        for batch in DECODE_BATCHES
    ]


def _mixed(results: Results) -> list[Figure]:
    peers = {"generate": results.generate, "generate_batch": results.generate_batch}

    def ratio() -> float:
        ours = _need(results, "bf16", _engine(results, "bf16").mixed, "mixed")
        rates = [peer.output_tokens_per_s for peer in peers.values() if peer is not None]
        if not rates:
            raise _Missing("; ".join(_why(results, name) for name in peers))
        return ours.output_tokens_per_s / max(rates)

    missing = [_why(results, name) for name, peer in peers.items() if peer is None]
    name = "mixed requests, output tokens/s, times the better of transformers' two"
    return [_figure(name, "times", Goal(">=", 3), ratio, "; ".join(missing))]


_MAKERS: dict[str, Callable[[Results], list[Figure]]] = {
    "checks": _checks,
    "decode": _decode,
    "prefill": _prefill,
    "quantized": _quantized,
    "blocks": _blocks,
    "host": _host,
    "chunk": _chunk,
    "itl": _itl,
    "deterministic": _deterministic,
    "experts": _experts,
    "ready": _ready,
    "latents": _latents,
    "mixed": _mixed,
}


def _why(results: Results, job: str, measure: str = "") -> str:
    """Why a job, or one measurement of an engine, gave nothing."""
    if job in results.problems:
        return f"{job}: {results.problems[job]}"
    engine = getattr(results, job)
    if isinstance(engine, Engine) and measure in engine.problems:
        return f"{job}, {measure}: {engine.problems[measure]}"
    return f"{job}{', ' if measure else ''}{measure}: not run"


def _need(results: Results, job: str, value: T | None, measure: str = "") -> T:
    if value is None:
        raise _Missing(_why(results, job, measure))
    return value


def _engine(results: Results, job: str) -> Engine:
    engine: Engine | None = getattr(results, job)
    return _need(results, job, engine)


def _decode_of(results: Results, job: str, batch: int) -> Decode:
    return _need(results, job, _engine(results, job).decode_of(batch), "decode")


def _ceilings(results: Results) -> Ceilings:
    return _need(results, "ceilings", results.ceilings)


def _bandwidth(results: Results) -> float:
    return _ceilings(results).read_bytes_per_s

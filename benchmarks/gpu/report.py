"""A run as one JSON document, and as Markdown for readers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from gpu import utilization
from gpu.device import FIELDS, Device, Reading
from gpu.goals import Figure, shown, shown_goal
from gpu.results import (
    BlockProduct,
    Ceilings,
    ChunkStep,
    Decode,
    Mixed,
    Place,
    Prefill,
    Results,
    StepTimes,
)

_UNITS = dict(zip(FIELDS, ("MHz", "MHz", "W", "°C", "%", "MiB"), strict=True))
_ENGINES = ("bf16", "int8", "int4", "cublas", "experts", "experts_int4", "latents")
_LEAST_SHARE = 0.005
"""Ops that take a smaller share of a step are reported together."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run found, and all that is needed to repeat it."""

    benchmark: str = "gpu"
    finished: str
    command: str
    shape: str
    measures: list[str]
    device: Device
    during: dict[str, dict[str, Reading]]
    """Clocks and power by job."""
    figures: list[Figure]
    results: Results

    @property
    def name(self) -> str:
        """Name of its files: device, shape, and when it was finished."""
        device = re.sub(r"[^a-z0-9]+", "-", self.device.name.lower()).strip("-")
        when = re.sub(r"[^0-9T]", "", self.finished[:16]).replace("T", "-")
        return f"{device}-{self.shape}-{when}"


def to_json(document: Document) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def to_markdown(document: Document) -> str:
    """Figures beside their goals first, then what they are made of."""
    parts = [
        f"# {document.device.name}, the shape of {document.shape}",
        _about(document),
        "## Goals\n\n" + _figures(document.figures),
        *_sections(document.results),
        *_during(document),
    ]
    problems = document.results.problems
    if problems:
        lines = [f"- {name}: {why}" for name, why in problems.items()]
        parts.append("## Not measured\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _about(document: Document) -> str:
    device = document.device
    versions = ", ".join(f"{name} {version}" for name, version in device.packages.items())
    lines = [
        f"Finished {document.finished}. `{document.command}`",
        f"Capability {device.capability}, {device.multiprocessors} multiprocessors, "
        f"{device.memory_bytes / 2**30:.0f} GiB of which {device.memory_free_bytes / 2**30:.0f} "
        f"were free, L2 {device.l2_bytes / 2**20:.0f} MiB; CUDA {device.cuda}; {versions}.",
    ]
    if device.fixed:
        lines.append(", ".join(f"{name} {value}" for name, value in device.fixed.items()) + ".")
    else:
        lines.append("nvidia-smi was not there: the driver, clocks and power are not known.")
    return "\n\n".join(lines)


def _figures(figures: Sequence[Figure]) -> str:
    rows = [
        (f.name, shown(f.value, f.unit), shown_goal(f), f.verdict, f.note.replace("|", "/"))
        for f in figures
    ]
    return table(("figure", "measured", "goal", "", "note"), rows)


def _sections(results: Results) -> Iterable[str]:
    ceilings = results.ceilings
    if ceilings is not None:
        yield (
            "## What the device can do\n\n"
            f"Reading {ceilings.read_span_bytes / 2**20:.0f} MiB: "
            f"{ceilings.read_bytes_per_s / 1e9:,.0f} GB/s. bf16 products of "
            f"{ceilings.matrix_size} x {ceilings.matrix_size}: "
            f"{ceilings.matrix_flops / 1e12:,.0f} TFLOP/s."
        )
    engines = {name: getattr(results, name) for name in _ENGINES if getattr(results, name)}
    decode = [_decode_row(name, run, ceilings) for name, e in engines.items() for run in e.decode]
    if decode:
        steps = ("weights", "batch", "context", "step, best", "median", "the plan alone")
        yield "## Decode\n\n" + table((*steps, "GB a step", "of bandwidth", "tokens/s"), decode)
    prefill = [
        _prefill_row(name, engine.prefill, ceilings)
        for name, engine in engines.items()
        if engine.prefill is not None
    ]
    if prefill:
        prompts = ("weights", "tokens", "best", "median", "tokens/s", "of the matrix rate")
        yield "## Prefill\n\n" + table(prompts, prefill)
    if results.blocks is not None and results.blocks.products:
        products = ("format", "matrix", "rows", "best", "MB", "reading them", "of bandwidth")
        rows = [_block_row(each, ceilings) for each in results.blocks.products]
        yield "## Products with matrices in blocks\n\n" + table(products, rows)
    bf16 = results.bf16
    if bf16 is not None and bf16.host is not None:
        host = bf16.host
        yield (
            f"## Host, batch {host.batch}\n\nA step takes {host.step_s * 1e3:.3f} ms, the plan "
            f"alone {host.device_s * 1e3:.3f} ms, the engine's thread {host.processor_s * 1e3:.3f} "
            "ms of processor time."
        )
    if bf16 is not None and bf16.chunk is not None:
        yield _chunk(bf16.chunk)
    if bf16 is not None and bf16.places:
        yield "## Time between tokens by position\n\n" + _places(bf16.places, ceilings)
    for name, engine in engines.items():
        for step in engine.steps:
            yield f"## Where a step goes: {name}, {step.step}\n\n" + _ops(step)
    mixed = {
        "Penstock": bf16.mixed if bf16 else None,
        "transformers, generate": results.generate,
        "transformers, continuous batching": results.generate_batch,
    }
    if any(mixed.values()):
        yield "## Mixed requests\n\n" + _mixed(mixed)
    if results.checks is not None:
        checks = results.checks
        text = (
            f"## Checks\n\n{checks.passed} tests passed, {checks.failed} failed, "
            f"{checks.skipped} were skipped, in {checks.seconds:.0f} s. Published text: "
            f"{checks.story}."
        )
        yield "\n".join([text, *(f"\n- {failure}" for failure in checks.failures)])


def _prefill_row(name: str, run: Prefill, ceilings: Ceilings | None) -> tuple[str, ...]:
    share = "-"
    if ceilings is not None:
        share = _share(utilization.of_matrix_rate(run, ceilings.matrix_flops))
    return (
        name,
        f"{run.tokens}",
        f"{run.seconds * 1e3:.1f} ms",
        f"{run.seconds_median * 1e3:.1f} ms",
        f"{run.tokens / run.seconds:,.0f}",
        share,
    )


def _decode_row(name: str, run: Decode, ceilings: Ceilings | None) -> tuple[str, ...]:
    share = "-"
    if ceilings is not None:
        share = _share(utilization.of_bandwidth(run, ceilings.read_bytes_per_s))
    return (
        name,
        f"{run.batch}",
        f"{run.context}",
        f"{run.step_s * 1e3:.3f} ms",
        f"{run.step_s_median * 1e3:.3f} ms",
        f"{run.device_s * 1e3:.3f} ms",
        f"{run.bytes / 1e9:.2f}",
        share,
        f"{run.tokens_per_s:,.1f}",
    )


def _block_row(run: BlockProduct, ceilings: Ceilings | None) -> tuple[str, ...]:
    floor = share = "-"
    if ceilings is not None:
        least = run.weight_bytes / ceilings.read_bytes_per_s
        floor, share = f"{least * 1e6:.1f} us", _share(least / run.seconds)
    return (
        run.format,
        f"{run.n} x {run.k}",
        f"{run.rows}",
        f"{run.seconds * 1e6:.1f} us",
        f"{run.weight_bytes / 1e6:.1f}",
        floor,
        share,
    )


def _chunk(run: ChunkStep) -> str:
    how = [("op by op", "", run.launched_s, run.launched_host_s)]
    if run.padded is not None:
        size = f"{run.padded[0]} tokens, {run.padded[1]} logits"
        how.append(("graph", size, run.replayed_s, run.replayed_host_s))
    rows = [
        (name, size, f"{step_s * 1e3:.3f} ms", f"{host_s * 1e3:.3f} ms")
        for name, size, step_s, host_s in how
    ]
    title = f"## A chunk of {run.chunk} tokens beside {run.decodes} that decode, {run.context} deep"
    return f"{title}\n\n" + table(("launched", "padded to", "step", "host"), rows)


def _places(places: Sequence[Place], ceilings: Ceilings | None) -> str:
    rows = []
    for place in places:
        rest = "-"
        if ceilings is not None:
            rest = f"{(place.itl_s - place.kv_bytes / ceilings.read_bytes_per_s) * 1e3:.3f} ms"
        kv = f"{place.kv_bytes / 1e6:.1f}"
        rows.append((f"{place.position}", f"{place.itl_s * 1e3:.3f} ms", kv, rest))
    return table(("position", "step", "KV MB", "without KV"), rows)


def _ops(step: StepTimes) -> str:
    """The ops of a step, longest first; those that take next to nothing in one row."""
    whole = step.seconds
    large = [op for op in step.ops if op.seconds >= _LEAST_SHARE * whole]
    small = [op for op in step.ops if op.seconds < _LEAST_SHARE * whole]
    rows = [
        (
            op.name,
            f"{op.launches}",
            f"{op.seconds * 1e6:,.0f} us",
            _share(op.seconds / whole),
            f"{op.weight_bytes / op.seconds / 1e9:,.0f}" if op.weight_bytes else "",
        )
        for op in large
    ]
    if small:
        seconds = sum(op.seconds for op in small)
        launches = sum(op.launches for op in small)
        taken = f"{seconds * 1e6:,.0f} us"
        rows.append((f"{len(small)} more", f"{launches}", taken, _share(seconds / whole), ""))
    rows.append(("all", f"{sum(o.launches for o in step.ops)}", f"{whole * 1e6:,.0f} us", "", ""))
    return table(("op", "launches", "time", "share", "GB/s of weights"), rows)


def _mixed(runs: dict[str, Mixed | None]) -> str:
    rows = [
        (
            name,
            f"{run.requests}",
            f"{run.prompt_tokens:,}",
            f"{run.output_tokens:,}",
            f"{run.seconds:.2f} s",
            f"{run.output_tokens_per_s:,.0f}",
            ", ".join(f"{key} {value}" for key, value in run.settings.items()),
        )
        for name, run in runs.items()
        if run is not None
    ]
    head = ("engine", "requests", "prompt tokens", "output tokens", "time", "output tokens/s")
    return table((*head, "settings"), rows)


def _during(document: Document) -> Iterable[str]:
    """Medians and the range of each reading, by job."""
    rows = [("before", document.device.before), *document.during.items()]
    cells = [
        (job, *(_reading(readings.get(name)) for name in FIELDS))
        for job, readings in rows
        if readings
    ]
    if cells:
        head = ("job", *(f"{name}, {unit}" for name, unit in _UNITS.items()))
        yield "## Clocks and power: median (least to most)\n\n" + table(head, cells)


def _reading(reading: Reading | None) -> str:
    if reading is None:
        return "-"
    if reading.least == reading.most:
        return f"{reading.median:g}"
    return f"{reading.median:g} ({reading.least:g} to {reading.most:g})"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""A comparison as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from comparison.cases import Metric
from comparison.measurement import advantage, best_peer
from comparison.peers import PENSTOCK
from comparison.results import CaseRecord, Comparison

GLOSSARY = """\
Each cell is the median over the rounds, with the best in brackets. Decoding is counted after the
last request of a batch has its first token; output tokens/s over the whole case, prompts
included. The ratio is Penstock over the best peer of the same precision, by medians (by bests in
brackets); above 1 Penstock is faster, whichever way the figure points."""


def render(comparison: Comparison, plots: dict[str, str] | None = None) -> str:
    """Markdown; ``plots`` has the file of each precision's plot, as the report refers to it."""
    parts = [f"# {comparison.shape} on a CPU, {comparison.date}", *_machine(comparison), GLOSSARY]
    for precision in comparison.precisions:
        parts.append(f"## {precision}")
        parts.append("\n".join(_table(comparison, precision)))
        if plots and precision in plots:
            parts.append(f"![{precision}]({plots[precision]})")
    parts.append("## Not measured")
    parts.append("\n".join(_absences(comparison)) or "Nothing.")
    parts.append("## Versions and settings")
    parts.append("\n".join(_settings(comparison)))
    parts.append("## Command")
    parts.append(f"```sh\n{comparison.command}\n```")
    return "\n\n".join(parts) + "\n"


def ratio(
    comparison: Comparison, precision: str, case: str, metric: Metric
) -> tuple[str, float, float] | None:
    """The best peer by medians, and Penstock's advantage by medians and by bests.

    None where Penstock or every peer is missing.
    """
    ours = comparison.summary(PENSTOCK.name, precision, case, metric)
    theirs = {
        name: found
        for name in comparison.names
        if name != PENSTOCK.name
        and (found := comparison.summary(name, precision, case, metric)) is not None
    }
    rival = best_peer(metric, {name: found.median for name, found in theirs.items()})
    fastest = best_peer(metric, {name: found.best for name, found in theirs.items()})
    if ours is None or rival is None or fastest is None:
        return None
    return (
        rival,
        advantage(metric, ours.median, theirs[rival].median),
        advantage(metric, ours.best, theirs[fastest].best),
    )


def _machine(comparison: Comparison) -> Iterator[str]:
    m = comparison.machine
    yield (
        f"{m.cpu_model}; {m.physical_cores} cores, {m.threads} threads for each engine; "
        f"{m.memory_bytes / 2**30:.0f} GiB; {', '.join(m.isa)}; Linux {m.kernel}, "
        f"Python {m.python}."
    )
    rates = [
        _rate("reads memory at {:.1f} GB/s", m.read_bandwidth_bytes_per_s, 1e9),
        _rate("multiplies bf16 at {:.2f} TFLOP/s", m.bf16_flops, 1e12),
        _rate("multiplies int8 at {:.2f} TOP/s", m.int8_ops, 1e12),
    ]
    measured = ", ".join(rate for rate in rates if rate) or f"not measured: {m.unmeasured}"
    loads = [sample.load_average_1m for sample in comparison.samples]
    busy = f" Load average before a case: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    yield f"Measured with the same threads, it {measured}.{busy}"


def _rate(form: str, value: float | None, unit: float) -> str:
    return "" if value is None else form.format(value / unit)


def _table(comparison: Comparison, precision: str) -> Iterator[str]:
    names = comparison.names
    yield "| | " + " | ".join(names) + " | ratio |"
    yield "|---" * (len(names) + 2) + "|"
    scored = {q.engine: q.perplexity for q in comparison.qualities if q.precision == precision}
    if scored:
        cells = [f"{scored[name]:.4g}" if name in scored else "-" for name in names]
        yield f"| perplexity of {comparison.text} | " + " | ".join([*cells, "-"]) + " |"
    for case in comparison.cases:
        for metric in (Metric[name] for name in case.metrics):
            cells = [_cell(comparison, name, precision, case, metric) for name in names]
            if set(cells) == {"-"}:
                continue
            found = ratio(comparison, precision, case.name, metric)
            last = "-"
            if found is not None:
                rival, by_median, by_best = found
                last = f"**{by_median:.2f}** ({by_best:.2f}), {rival}"
            yield f"| {case.title}: {metric.value} | " + " | ".join([*cells, last]) + " |"


def _cell(
    comparison: Comparison, name: str, precision: str, case: CaseRecord, metric: Metric
) -> str:
    found = comparison.summary(name, precision, case.name, metric)
    return "-" if found is None else f"{number(found.median)} ({number(found.best)})"


def number(value: float) -> str:
    """Three digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _absences(comparison: Comparison) -> Iterator[str]:
    for a in comparison.absences:
        case = "" if a.case is None else f", {a.case}"
        yield f"- {a.engine}, {a.precision}{case}: {a.reason}"


def _settings(comparison: Comparison) -> Iterator[str]:
    for record in comparison.engines:
        versions = ", ".join(f"{name} {v}" for name, v in record.versions.items())
        size = f"{record.artifact_bytes / 1e9:.2f} GB on disk"
        yield f"- **{record.engine} {record.precision}**: {versions}; {size}"
        for name, value in record.settings.items():
            yield f"  - {name}: `{value}`"

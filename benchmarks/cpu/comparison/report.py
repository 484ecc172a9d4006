"""A comparison as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from comparison.cases import Metric
from comparison.measurement import Summary, advantage, best_peer
from comparison.peers import PENSTOCK
from comparison.results import CaseRecord, Comparison

GLOSSARY = """\
Each cell is the median over the rounds, with the lowest and the highest round in brackets: how
far they lie apart is how much the machine's neighbours, and chance, have to do with it. Decoding
is counted after the last request of a batch has its first token; output tokens/s over the whole
case, prompts included. The ratio is Penstock over the best peer of the same precision, by medians
of the rounds in which both ran, one after the other (in brackets from the worst to the best of
these); above 1 Penstock is faster, whichever way the figure points."""
ONE_ROUND = "one round, no figure"


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
) -> tuple[str, Summary] | None:
    """The best peer by medians, and Penstock's advantage over it in the rounds that both ran: by
    their medians, and in the worst and the best of them.

    None where Penstock or every peer is missing, or no round has both.
    """
    rounds = {
        name: found
        for name in comparison.names
        if (found := comparison.rounds(name, precision, case, metric))
    }
    ours = rounds.pop(PENSTOCK.name, {})
    medians = {name: median(found.values()) for name, found in rounds.items()}
    rival = best_peer(metric, medians)
    if not ours or rival is None:
        return None
    theirs = rounds[rival]
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    single = [advantage(metric, ours[number], theirs[number]) for number in both]
    middle = advantage(
        metric,
        median(ours[number] for number in both),
        median(theirs[number] for number in both),
    )
    return rival, Summary(middle, min(single), max(single), len(both))


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
    yield f"Measured with the same threads, it {measured}.{_neighbours(comparison)}"
    if comparison.stopped:
        yield "**The run was stopped before its last case**: figures are of what was done by then."
    if comparison.cap is not None:
        yield (
            f"**Every engine is held to {comparison.cap.isa}**: {comparison.cap.title}, so that "
            "this machine stands for others. What each says that it uses is its `isa` below; one "
            "that uses more is not measured."
        )


def _neighbours(comparison: Comparison) -> str:
    """What else the machine did, as far as it was seen."""
    if comparison.load is None:
        return ""
    least, most = comparison.load
    text = f" Load average before a case: {least:.1f} to {most:.1f}."
    others = [s.other_cpus for s in comparison.samples if s.other_cpus is not None]
    if others:
        text += (
            f" While cases ran, other processes kept {min(others):.1f} to {max(others):.1f} CPUs "
            f"busy ({median(others):.1f} in the median)."
        )
    return text


def _rate(form: str, value: float | None, unit: float) -> str:
    return "" if value is None else form.format(value / unit)


def _table(comparison: Comparison, precision: str) -> Iterator[str]:
    names = comparison.names
    yield f"| {_rounds(comparison, precision)} | " + " | ".join(names) + " | ratio |"
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
                rival, ours = found
                last = f"{_advantage(ours)}, {rival}" if ours.is_figure else ONE_ROUND
            yield f"| {case.title}: {metric.value} | " + " | ".join([*cells, last]) + " |"


def _rounds(comparison: Comparison, precision: str) -> str:
    """How many rounds the figures of a precision are of; empty where there are none."""
    counts = Counter(
        (s.engine, s.case) for s in comparison.samples if s.precision == precision
    ).values()
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    if least < most:
        return f"{least} to {most} rounds"
    return "1 round" if most == 1 else f"{most} rounds"


def _cell(
    comparison: Comparison, name: str, precision: str, case: CaseRecord, metric: Metric
) -> str:
    found = comparison.summary(name, precision, case.name, metric)
    if found is None:
        return "-"
    rounds = (
        f"{number(found.lowest)} to {number(found.highest)}" if found.is_figure else "one round"
    )
    return f"{number(found.median)} ({rounds})"


def _advantage(found: Summary) -> str:
    return f"**{found.median:.2f}** ({found.lowest:.2f} to {found.highest:.2f})"


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

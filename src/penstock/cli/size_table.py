"""Prints what ``penstock size`` found, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.cache.geometry import KvDType
from penstock.dtypes import QuantizationName
from penstock.models.spec import ModelSpec
from penstock.sizing.accelerator import DeviceKind
from penstock.sizing.configuration import Configuration, Room
from penstock.sizing.footprint import kv_kinds
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.ranking import Best
from penstock.sizing.search import Demanded, Search
from penstock.sizing.serving import Slo

_ROWS = 10
_HEAD = (
    *("", "accelerator", "devices", "weights", "KV"),
    *("fit", "TTFT", "TPOT", "tokens/s", "$/h", "$/M in", "$/M out", "binds"),
)
_LEFT = 5
"""Columns that are words."""


def table(model: str, search: Search, found: Sequence[Configuration], best: Best) -> str:
    """The model's memory, the configurations to look at, and what to try next."""
    lines = [
        *model_lines(
            model,
            search.model,
            best.cheapest.device.kind,
            search.choices.weights,
            search.budget(best.cheapest.device),
            best.cheapest.precision.kv,
        ),
        _load_line(search.demanded, best.cheapest.room),
        "",
    ]
    marked: dict[int, list[str]] = {}
    if best.meets:
        for word, each in (
            ("cheapest", best.cheapest),
            ("fastest", best.fastest),
            ("cheapest full", best.fullest),
        ):
            marked.setdefault(id(each), []).append(word)
    shown = [*dict.fromkeys((best.cheapest, best.fastest, best.fullest))]
    others = [each for each in best.each if each not in shown and each.meets == best.meets]
    shown += others[: _ROWS - len(shown)]
    rows = [_HEAD, *(_row(", ".join(marked.get(id(each), [])), each) for each in shown)]
    lines += aligned(rows, _LEFT, wide_last=True)
    left = len(best.each) - len({(c.device.name, c.precision.weights) for c in shown})
    if left > 0:
        lines.append(f"and {left} more; --json has all {len(found)} that hold the model")
    lines += ["", *_next_lines(search.demanded, found, best)]
    return "\n".join(lines)


def model_lines(
    model: str,
    sized: SizedModel,
    kind: DeviceKind,
    weights: Sequence[QuantizationName],
    step_tokens: int,
    kv: KvDType | None = None,
) -> Iterator[str]:
    """What the model is, and what its weights and caches take."""
    spec = sized.spec
    precision = Precision(weights[0], kv or spec.dtype)
    whole = sized.plan(kind, precision, step_tokens)
    its = whole.footprint
    yield (
        f"model    {model}: {spec.architecture}, {_count(whole.plan.num_parameters)} parameters, "
        f"{len(spec.layers)} layers"
    )
    sizes = []
    for each in weights:
        like = sized.plan(kind, replace(precision, weights=each), step_tokens).footprint
        sizes.append(f"{gib(like.weights)} {_weights(each, spec)}")
    yield f"weights  {', '.join(sizes)}; buffers of a step {gib(its.activations)}"
    for kept in kv_kinds(spec, whole.plan):
        size = _kib(kept.token_bytes) + " a token" if kept.token_bytes else "nothing of a token"
        yield f"cache    {kept.layers} layers: {kept.name}, {size} in {precision.kv}"
    if its.state_bytes:
        yield f"         and {gib(its.state_bytes)} of states a request"


def _load_line(demanded: Demanded, room: Room) -> str:
    w, spec = demanded.workload, demanded.workload.speculation
    drafts = f", {spec.length:.2f} tokens a step of each with drafts" if spec.tokens else ""
    return (
        f"load     {demanded.concurrency} open requests, {w.isl:,} tokens in, {w.osl:,} out{drafts}"
        f", {gib(room.request)} of cache each on a device; objectives: {objectives(demanded.slo)}"
    )


def objectives(slo: Slo) -> str:
    """The objectives in words."""
    pairs = (("TTFT", slo.ttft), ("TPOT", slo.tpot), ("latency", slo.latency))
    named = [f"{name} {time_text(value)}" for name, value in pairs if value is not None]
    return ", ".join(named) or "none"


def _row(mark: str, each: Configuration) -> tuple[str, ...]:
    at, price = each.at_load, each.usd_per_million
    decode, prefill = each.decode, each.prefill
    copies = f"{each.replicas} x " if each.replicas > 1 else ""
    return (
        mark,
        each.device.name,
        f"{copies}{each.parallel}",
        "as they are" if each.precision.weights == "none" else each.precision.weights,
        each.precision.kv,
        f"{each.room.requests:,}",
        time_text(at.ttft),
        time_text(at.tpot),
        f"{at.output_tps * each.replicas:,.0f}",
        "-" if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}",
        "-" if price is None else f"{price[0]:,.3f}",
        "-" if price is None else f"{price[1]:,.3f}",
        f"{decode.binds} {decode.share:.0%}, prompts {prefill.binds} {prefill.share:.0%}",
    )


def _next_lines(demanded: Demanded, found: Sequence[Configuration], best: Best) -> Iterator[str]:
    chosen = best.cheapest
    at = chosen.at_load
    if not best.meets:
        missed = [
            f"{name} {time_text(value)} instead of {time_text(most)}"
            for name, value, most in (
                ("TTFT", at.ttft, demanded.slo.ttft),
                ("TPOT", at.tpot, demanded.slo.tpot),
                ("latency", at.latency, demanded.slo.latency),
            )
            if most is not None and value > most
        ]
        yield (
            f"nothing meets the objectives; the nearest is {named(chosen)}: {', '.join(missed)}."
        )
        yield f"next     {_remedy(demanded, chosen)}"
        return
    full = chosen.full
    yield (
        f"next     one replica of {named(chosen, 1)} serves up to {full.concurrency:,} open "
        f"requests within the objectives, {full.output_tps:,.0f} tokens/s"
    )
    if chosen.usd_per_million_full is not None:
        cost = chosen.usd_per_million_full
        yield f"         then ${cost[0]:,.3f} a million tokens in, ${cost[1]:,.3f} out"
    if best.fastest is not chosen:
        ratio = at.latency / best.fastest.at_load.latency
        yield (
            f"         {named(best.fastest)} answers {ratio:.1f} times as fast"
            + _times_cost(best.fastest, chosen)
        )
    priced = [each.device.price for each in (chosen, best.fastest) if each.device.price]
    if priced:
        dates = sorted({price.on for price in priced})
        yield f"prices   on demand, of {' and '.join(dates)}; --catalogue FILE takes yours"


def _remedy(demanded: Demanded, nearest: Configuration) -> str:
    """What would help where the nearest configuration does not."""
    at, slo = nearest.at_load, demanded.slo
    if slo.ttft is not None and at.ttft > slo.ttft:
        alone = nearest.prefill.seconds * -(-demanded.workload.isl // at.prefill.tokens)
        return (
            f"reading a prompt of {demanded.workload.isl:,} tokens alone takes {time_text(alone)} "
            f"({nearest.prefill.binds}): shorter prompts, cached prefixes, more ranks (--tp), or "
            f"ttft:{time_text(at.ttft * 1.05)}"
        )
    if nearest.decode.binds == "memory":
        return (
            "fewer bits (--quantization int4, --kv-cache-dtype int8), drafts (--speculate), more "
            f"ranks (--tp), or tpot:{time_text(at.tpot * 1.05)}"
        )
    return (
        f"steps are bound by {nearest.decode.binds}: fewer requests at once, another accelerator, "
        f"or tpot:{time_text(at.tpot * 1.05)}"
    )


def _times_cost(one: Configuration, other: Configuration) -> str:
    if one.usd_per_hour is None or not other.usd_per_hour:
        return ""
    return f" for {one.usd_per_hour / other.usd_per_hour:.1f} times the price"


def named(each: Configuration, replicas: int | None = None) -> str:
    """How many of which devices, and their weights."""
    count = (replicas or each.replicas) * each.parallel.devices
    weights = each.precision.weights
    how = "" if weights == "none" else f", {weights} weights"
    return f"{count} x {each.device.name} ({each.parallel}{how})"


def aligned(rows: Sequence[tuple[str, ...]], left: int, wide_last: bool = False) -> Iterator[str]:
    """Rows of equal length as lines; the first ``left`` columns are words, and so is the last one
    if ``wide_last``."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(wide) - 1
    for row in rows:
        cells = [
            cell.ljust(wide[i]) if i < left or (wide_last and i == last) else cell.rjust(wide[i])
            for i, cell in enumerate(row)
        ]
        yield "  ".join(cells).rstrip()


def _weights(name: str, spec: ModelSpec) -> str:
    return f"as they are ({spec.quantized or spec.dtype})" if name == "none" else name


def time_text(seconds: float) -> str:
    """A time in the unit that fits it."""
    if seconds >= 10:
        return f"{seconds:,.0f}s"
    if seconds >= 1:
        return f"{seconds:.2f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f}ms"


def _count(number: int) -> str:
    return f"{number / 1e9:,.2f} billion" if number >= 1e9 else f"{number / 1e6:,.1f} million"


def gib(size: float) -> str:
    """A size in GiB, small ones in MiB."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"


def _kib(size: float) -> str:
    return f"{size / 2**10:,.1f} KiB" if size < 2**20 else f"{size / 2**20:,.2f} MiB"

"""Prints what ``penstock size`` found, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.cache.geometry import BLOCK_SIZE
from penstock.sizing.search import Best, Configuration, Demanded, Search
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
    lines = [*_model_lines(model, search, best.cheapest), _load_line(search.demanded), ""]
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
    lines += _aligned(rows)
    left = len(best.each) - len({(c.device.name, c.precision.weights) for c in shown})
    if left > 0:
        lines.append(f"and {left} more; --json has all {len(found)} that hold the model")
    lines += ["", *_next_lines(search.demanded, found, best)]
    return "\n".join(lines)


def _model_lines(model: str, search: Search, chosen: Configuration) -> Iterator[str]:
    spec = search.model.spec
    sized = search.model.plan(
        chosen.device.kind, chosen.precision, search.budget(chosen.device)
    ).footprint
    yield (
        f"model    {model}: {spec.architecture}, {_count(sized.parameters)} parameters, "
        f"{len(spec.layers)} layers"
    )
    sizes = []
    for weights in search.choices.weights:
        like = search.model.like(
            chosen.device.kind, chosen.precision, weights, search.budget(chosen.device)
        )
        sizes.append(f"{_gib(like.footprint.weights)} {_weights(weights, spec.dtype)}")
    yield f"weights  {', '.join(sizes)}; buffers of a step {_gib(sized.activations)}"
    for kind in sized.kinds:
        kept = _kib(kind.token_bytes) + " a token" if kind.token_bytes else "nothing of a token"
        yield f"cache    {kind.layers} layers: {kind.name}, {kept}"
    tokens = search.demanded.workload.tokens
    yield (
        f"         {_kib(sized.token_bytes)} a token in {chosen.precision.kv}, "
        f"{_gib(sized.sequence_bytes(tokens))} a request (in blocks of {BLOCK_SIZE})"
    )


def _load_line(demanded: Demanded) -> str:
    w, spec = demanded.workload, demanded.workload.speculation
    drafts = f", {spec.length:.2f} tokens a step of each with drafts" if spec.tokens else ""
    return (
        f"load     {demanded.concurrency} open requests, {w.isl:,} tokens in, {w.osl:,} out{drafts}"
        f"; objectives: {_objectives(demanded.slo)}"
    )


def _objectives(slo: Slo) -> str:
    pairs = (("TTFT", slo.ttft), ("TPOT", slo.tpot), ("latency", slo.latency))
    named = [f"{name} {_time(value)}" for name, value in pairs if value is not None]
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
        _time(at.ttft),
        _time(at.tpot),
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
            f"{name} {_time(value)} instead of {_time(most)}"
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
            f"reading a prompt of {demanded.workload.isl:,} tokens alone takes {_time(alone)} "
            f"({nearest.prefill.binds}): shorter prompts, cached prefixes, more ranks (--tp), or "
            f"ttft:{_time(at.ttft * 1.05)}"
        )
    if nearest.decode.binds == "memory":
        return (
            "fewer bits (--quantization int4, --kv-cache-dtype int8), drafts (--speculate), more "
            f"ranks (--tp), or tpot:{_time(at.tpot * 1.05)}"
        )
    return (
        f"steps are bound by {nearest.decode.binds}: fewer requests at once, another accelerator, "
        f"or tpot:{_time(at.tpot * 1.05)}"
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


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    wide = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    last = len(_HEAD) - 1
    for row in rows:
        cells = [
            cell.ljust(wide[i]) if i < _LEFT or i == last else cell.rjust(wide[i])
            for i, cell in enumerate(row)
        ]
        yield "  ".join(cells).rstrip()


def _weights(name: str, dtype: str) -> str:
    return f"as they are ({dtype})" if name == "none" else name


def _time(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:,.0f}s"
    if seconds >= 1:
        return f"{seconds:.2f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f}ms"


def _count(number: int) -> str:
    return f"{number / 1e9:,.2f} billion" if number >= 1e9 else f"{number / 1e6:,.1f} million"


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"


def _kib(size: float) -> str:
    return f"{size / 2**10:,.1f} KiB" if size < 2**20 else f"{size / 2**20:,.2f} MiB"

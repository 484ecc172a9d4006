"""The picture of ``penstock quantize --compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.bench.plots.figure import Figure, Panel, Spec
from penstock.bench.plots.marks import axis, colored, data, shaped
from penstock.bench.plots.words import rounded
from penstock.quantize.comparison import Variant, frontier


def frontier_figure(variants: Sequence[Variant]) -> Figure:
    """Divergence against bytes and against tokens/s, with the frontier of each as a line."""
    own = [each for each in variants if each.bits_per_weight is not None]
    base = next(each for each in variants if each.bits_per_weight is None)
    names = [each.name for each in own]
    least = min(own, key=lambda each: each.kl_mean)
    return Figure(
        "quantization",
        "Quantization",
        f"{least.name} is nearest to the model as it is, {least.kl_mean:.4f} nats a token away",
        f"Divergence (Kullback and Leibler) from the model as it is, whose weights take "
        f"{base.num_bytes / 1e6:,.0f} MB and which decodes {base.decode_tokens_per_s:.1f} tokens/s "
        "in one stream. The line joins what nothing else beats in both.",
        [
            Panel("By bytes", _panel(own, "MB of weights", _megabytes, 1)),
            Panel("By speed", _panel(own, "tokens/s, one stream", _speed, -1)),
        ],
        names,
    )


def _megabytes(variant: Variant) -> float:
    return variant.num_bytes / 1e6


def _speed(variant: Variant) -> float:
    return variant.decode_tokens_per_s


def _panel(
    variants: Sequence[Variant], title: str, value: Callable[[Variant], float], sign: int
) -> Spec:
    """``sign``: 1 where less is better, -1 where more is."""
    best = frontier([sign * value(v) for v in variants], [v.kl_mean for v in variants])
    names = [each.name for each in variants]
    ordered = sorted(zip(variants, best, strict=True), key=lambda each: value(each[0]))
    rows = [
        {"series": v.name, "x": rounded(value(v)), "y": rounded(v.kl_mean), "best": is_best}
        for v, is_best in ordered
    ]
    x = axis("x", title, scale={"zero": False})
    y = axis("y", "nats a token", scale={"type": "log"})
    return {
        "layer": [
            {
                **data([row for row in rows if row["best"]]),
                "mark": {"type": "line", "style": "reference"},
                "encoding": {"x": x, "y": y},
            },
            {
                **data(rows),
                "mark": {"type": "point", "filled": True, "size": 80},
                "encoding": {"x": x, "y": y, "color": colored(names), "shape": shaped(names)},
            },
            {  # colors and shapes come again behind the sixth
                **data(rows),
                "mark": {"type": "text", "align": "left", "dx": 7, "dy": -5, "fontSize": 10},
                "encoding": {"x": x, "y": y, "text": {"field": "series"}},
            },
        ]
    }

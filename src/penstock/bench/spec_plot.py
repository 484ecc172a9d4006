"""Plots the results of speculation beside the formula's. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.bench.machine import Machine
from penstock.bench.speculation import SpecResult, formula
from penstock.errors import ConfigError


def check_plot(path: Path) -> None:
    """Raise ConfigError if no picture could be written there: before hours of measuring."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"a plot is written as .svg, .png or .pdf, not {path.name!r}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib; install it with: pip install 'penstock[plot]'"
        ) from error


def draw(results: Sequence[SpecResult], title: str, machine: Machine, path: Path) -> None:
    """Speed-ups beside the formula's, and acceptance by position, with their numbers; one color a
    method. The machine stands below the title."""
    import matplotlib

    matplotlib.use("agg")
    # The same figures make the same file: no date in it, and names from a fixed salt.
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (speed, tokens, positions) = pyplot.subplots(
        1, 3, figsize=(13, 4), layout="constrained", width_ratios=[1.4, 1, 1]
    )
    names = [result.method.partition(":")[0] for result in results]
    labels = [f"{i + 1}. {name}" for i, name in enumerate(names)]
    places = range(len(results))
    colors = [f"C{i}" for i in places]
    speed.barh(places, [result.speedup for result in results], color=colors)
    for place, result in zip(places, results, strict=True):
        ends = [place - 0.4, place + 0.4]
        speed.plot([result.formula_speedup] * 2, ends, color="black", linewidth=2)
        lowest, highest = result.speedup_range
        speed.plot([lowest, highest], [place, place], color="black", linewidth=1, alpha=0.5)
    speed.axvline(1.0, color="gray", linewidth=1, linestyle=":")
    numbers = [
        f"{label}\n{result.speedup:.2f}, formula {result.formula_speedup:.2f}"
        for label, result in zip(labels, results, strict=True)
    ]
    speed.set_yticks(list(places), numbers, fontsize=9)
    speed.invert_yaxis()
    speed.set_xlim(left=0)
    speed.set_xlabel("times the tokens/s of plain decoding", fontsize=9)
    speed.set_title(
        "Speed-up (bars; thin: all repeats),\nand by the formula (thick lines)", fontsize=10
    )
    deepest = max(result.depth for result in results)
    for color, label, result in zip(colors, labels, results, strict=True):
        lengths = [deepest * i / 50 for i in range(51)]
        curve = [formula(result.acceptance, length) for length in lengths]
        tokens.plot(lengths, curve, color=color, linewidth=1)
        brought = 1 + result.accepted_per_draft
        tokens.plot(result.depth, brought, "o", color=color, label=f"{label}: {brought:.2f}")
        shares = result.accepted_by_position
        reached = range(1, len(shares) + 1)
        positions.plot(reached, shares, "o-", color=color, markersize=3, label=label)
    tokens.set_title(
        "Tokens a step with a draft (points),\n(1 - a^(K+1)) / (1 - a) (lines)", fontsize=10
    )
    tokens.set_xlabel("tokens of a draft, K", fontsize=9)
    tokens.set_ylabel("tokens", fontsize=9)
    tokens.legend(fontsize=8)
    positions.set_title("Share of drafts accepted as far as position", fontsize=10)
    positions.set_xlabel("position in the draft", fontsize=9)
    positions.set_ylabel("share of all drafts", fontsize=9)
    positions.xaxis.set_major_locator(MaxNLocator(integer=True))
    positions.set_ylim(0, 1)
    bandwidth = machine.read_bandwidth_bytes_per_s
    reads = "" if bandwidth is None else f", reads {bandwidth / 1e9:.0f} GB/s"
    figure.suptitle(f"{title}\n{machine.cpu_model}, {machine.threads} threads{reads}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)

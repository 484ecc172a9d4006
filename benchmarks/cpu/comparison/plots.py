"""Bars of a comparison, one picture for each precision. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from comparison.cases import Metric
from comparison.results import CaseRecord, Comparison

COLUMNS = 3


def draw(comparison: Comparison, precision: str, path: Path) -> bool:
    """Write an SVG of the medians, with lines to the bests; False where nothing was measured.

    Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no date in it, and names from a fixed salt.
    matplotlib.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import pyplot

    panels = _panels(comparison, precision)
    if not panels:
        return False
    rows = -(-len(panels) // COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(11, 2.4 * rows), squeeze=False, layout="constrained"
    )
    colors = {name: f"C{i}" for i, name in enumerate(comparison.names)}
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (case, metric) in zip(axes.flat, panels, strict=False):
        for name in reversed(comparison.names):
            found = comparison.summary(name, precision, case.name, metric)
            if found is None:
                continue
            axis.barh(name, found.median, color=colors[name])
            axis.plot([found.median, found.best], [name, name], color="black", linewidth=1)
        better = "more" if metric.higher_is_better else "less"
        axis.set_title(f"{case.title}\n{metric.value} ({better} is better)", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.set_xlim(left=0)
    figure.suptitle(f"{comparison.shape}, {precision}: {comparison.machine.cpu_model}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _panels(comparison: Comparison, precision: str) -> list[tuple[CaseRecord, Metric]]:
    """Case and metric of everything that some engine was measured with."""
    return [
        (case, metric)
        for case in comparison.cases
        for metric in (Metric[name] for name in case.metrics)
        if any(comparison.summary(n, precision, case.name, metric) for n in comparison.names)
    ]

"""What ``penstock quantize`` shows while it runs, and says at the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.cli.status_line import StatusLine, bar

if TYPE_CHECKING:
    from penstock.quantize.progress import Progress
    from penstock.quantize.run import Quantized


class Clock:
    """Shows how far a run is, and how long it will take."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._first: tuple[float, float] | None = None
        self._phase = ""

    def tell(self, progress: Progress) -> None:
        """Show this."""
        self._status.show(lambda: self._text(progress))

    def _text(self, progress: Progress) -> str:
        at, now = progress.layer + progress.part, time.monotonic()
        if self._first is None or self._phase != progress.phase:
            self._first, self._phase = (at, now), progress.phase
        then, since = self._first
        left = ""
        if at > then:
            seconds = (now - since) / (at - then) * (progress.layers - at)
            left = f", {_duration(seconds)} left"
        shown = bar(at / progress.layers) if self._status.rewrites else ""
        layer = f"{progress.unit} {progress.layer + 1} of {progress.layers}"
        return f"{progress.phase}:{shown} {layer}, {progress.doing}{left}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def report(done: Quantized, seconds: float) -> None:
    """Print what was written, in so many ``seconds``."""
    sizes = f"{done.source_bytes / 1e6:,.1f} -> {done.num_bytes / 1e6:,.1f} MB"
    print(f"{done.folder}: {done.matrices} matrices, {sizes} in {_duration(seconds)}")
    if done.chosen is not None:
        each = sorted(done.chosen.matrices.items())
        counts = (f"{n} in {'floats' if bits == 16 else f'{bits} bits'}" for bits, n in each)
        print(f"  {', '.join(counts)}: {done.chosen.bits_a_weight:.3f} bits a weight")
    if done.resumed:
        were = "layer was" if done.resumed == 1 else "layers were"
        print(f"  {done.resumed} {were} done by the run before")
    if done.tuned is not None:
        tuned = done.tuned
        said = "" if tuned.kept else "; the checkpoint is as it was before"
        print(
            f"  {tuned.steps} steps of training: {tuned.before:.4f} -> {tuned.after:.4f} nats a "
            f"token from the model in floats, on {tuned.held_out_tokens} tokens held out{said}"
        )
    few = sum(each.few for each in done.rounded)
    if few:
        print(
            f"  {few} matrices multiply too little of the text to calibrate them, and are rounded "
            "to nearest; calibrate with more text"
        )
    errors = [(each.error, each.module) for each in done.rounded if each.error is not None]
    if errors:
        worst, module = max(errors)
        mean = sum(error for error, _ in errors) / len(errors)
        which = " of the other layers" if done.resumed else ""
        print(f"  squared error of outputs{which}: mean {mean:.2%}, largest {worst:.2%} ({module})")

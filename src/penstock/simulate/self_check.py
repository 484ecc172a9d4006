"""What a calibration says of itself: how well its rounds predict each other, and what disturbed it.

The constants of every second round predict the other rounds, and the other way round. Beside that
stands how much the same figures differ between these halves as they were measured: no prediction
can be nearer than the measurement repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Final

import msgspec

from penstock.simulate.agreement import Agreement, Figure, figures, measured, simulated
from penstock.simulate.fitted import Fitted, fitted
from penstock.simulate.recording import Recording
from penstock.simulate.server_rounds import MOST_OTHERS
from penstock.simulate.setup import Setup

_FAR, _FAR_TAILS = 0.12, 0.35
"""Mean relative errors, of medians and of 99th percentiles, beyond which a calibration is poor."""
_DRIFT: Final = 0.35
"""The part by which steps may be slower or faster in one round than in another."""

SetupOf = Callable[[Fitted], Setup]


class SelfCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How far a calibration is to be believed."""

    rounds: int
    """Those that it was fitted to."""
    left_out: int
    """Loads that were not used, since others had too much of the machine."""
    others: float
    """Processors that other processes and the host took on the average."""
    drift: float
    """The part by which the steps of the slowest round took longer than those of the median one, or
    of the fastest shorter: the larger, over all loads."""
    medians: Agreement | None
    """Half of the rounds, simulated by what was fitted to the other half: errors of the medians of
    TTFT, ITL and whole answers. None: there was one round."""
    tails: Agreement | None
    """The same of their 99th percentiles."""
    repeats: Agreement | None
    """How much the measured medians of the two halves differ."""

    @property
    def faults(self) -> list[str]:
        """Why the calibration is poor, in words; empty where it is not."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        if self.medians is not None and self.medians.mean > _FAR:
            yield (
                f"half of its rounds are off by {self.medians.mean:.0%} in the medians of the other"
            )
        if self.tails is not None and self.tails.mean > _FAR_TAILS:
            yield (
                f"half of its rounds are off by {self.tails.mean:.0%} in the 99th percentiles of "
                "the other"
            )
        if self.drift > _DRIFT:
            yield f"steps of one round differed by {self.drift:.0%} from those of the others"
        if self.others > MOST_OTHERS:
            yield f"others had {self.others:.2f} processors of this machine meanwhile"
        if self.medians is None:
            yield "it has one round of loads, so nothing could be compared"

    def __str__(self) -> str:
        told = [f"{self.rounds} rounds"]
        if self.medians is not None and self.tails is not None and self.repeats is not None:
            told += [
                f"half of them predicts the medians of the other within {self.medians.mean:.1%} on "
                f"average (worst {self.medians.worst:.0%}, {self.medians.where}) and the 99th "
                f"percentiles within {self.tails.mean:.0%}",
                f"the measured medians repeat within {self.repeats.mean:.1%}",
            ]
        if self.left_out:
            told.append(f"{self.left_out} loads left out that others disturbed")
        text = "; ".join(told)
        if self.faults:
            text += f"; POOR: {'; '.join(self.faults)}: calibrate again while nothing else runs"
        return text


def self_check(recording: Recording, whole: Fitted, setup_of: SetupOf, left_out: int) -> SelfCheck:
    """Have the halves of a recording predict each other; ``whole`` is what was fitted to all."""
    found: list[Figure] = []
    repeats: list[Figure] = []
    rounds = recording.rounds
    if len(rounds) > 1:
        halves = [recording.of_rounds(set(rounds[part::2])) for part in (0, 1)]
        seen = [measured(each.loads) for each in halves]
        repeats = list(figures(seen[0], seen[1]))
        for here, there in ((0, 1), (1, 0)):
            setup = setup_of(fitted(halves[there]))
            found += figures(seen[here], simulated(halves[here].loads, setup))
    drifts = [abs(each - 1) for each in whole.drifts.values()]
    others = [each.disturbed for each in recording.loads]
    return SelfCheck(
        rounds=len(rounds),
        left_out=left_out,
        others=fmean(others) if others else 0.0,
        drift=max(drifts, default=0.0),
        medians=Agreement.of(_of(found, "p50")),
        tails=Agreement.of(_of(found, "p99")),
        repeats=Agreement.of(_of(repeats, "p50")),
    )


def undisturbed(recording: Recording) -> tuple[Recording, int]:
    """A recording without the loads during which others had more of the machine than they should,
    as far as two rounds of each load remain; and how many were left out."""
    kept = []
    for load in recording.loads:
        alike = sorted(
            (each for each in recording.loads if each.name == load.name),
            key=lambda each: each.disturbed,
        )
        if load.disturbed <= MOST_OTHERS or load in alike[:2]:
            kept.append(load)
    left_out = len(recording.loads) - len(kept)
    return msgspec.structs.replace(recording, loads=kept), left_out


def _of(found: list[Figure], part: str) -> list[Figure]:
    return [each for each in found if each.name.endswith(part)]

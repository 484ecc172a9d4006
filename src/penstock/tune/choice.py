"""Which candidate is chosen: by measurement where there is one, else by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.profile import Figure, ObjectiveName, Served, Tried
from penstock.tune.objective import key_of
from penstock.tune.space import Candidate


@dataclass(frozen=True)
class Finalist:
    """A candidate that is compared at the end."""

    candidate: Candidate
    name: str
    predicted: Served
    """Simulated on the load that is measured, or without measurement on all of it."""
    measured: Served | None
    guessed: tuple[str, ...] = ()
    """What of the simulation went beyond the calibration, in words."""

    @property
    def tried(self) -> Tried:
        return Tried(predicted=self.predicted, measured=self.measured)


@dataclass(frozen=True)
class Choice:
    """What was chosen, and how it compares with the default."""

    chosen: Finalist
    default: Finalist
    verified: bool
    notes: tuple[str, ...]

    @property
    def gain(self) -> float | None:
        """How many times the default's goodput, or without an SLO its tokens a second, it has; None
        where the default has none."""
        if self.verified and self.chosen.measured and self.default.measured:
            pair = self.chosen.measured, self.default.measured
        else:
            pair = self.chosen.predicted, self.default.predicted
        mine, theirs = (_main(each).mean for each in pair)
        return mine / theirs if theirs > 0 else None


def choose(finalists: Sequence[Finalist], objective: ObjectiveName) -> Choice:
    """Choose one of several, of which the first is the default.

    Where all were measured, by that. Else none is chosen whose simulation rests on a guess. The
    default stays where nothing is better than it.
    """
    default = finalists[0]
    verified = all(each.measured is not None for each in finalists)

    def key(each: Finalist) -> tuple[float, ...]:
        served = each.measured if verified else each.predicted
        assert served is not None
        return key_of(objective, served)

    sound = [each for each in finalists if verified or each is default or not each.guessed]
    chosen = min(sound, key=key)  # of equals, the first
    notes = [
        f"{each.name} is predicted to be better, by a guess beyond the calibration: it is not "
        "chosen, since nothing was measured"
        for each in finalists
        if each not in sound and key(each) < key(chosen)
    ]
    if chosen is default:
        notes.append("nothing was better than the default")
    elif verified and chosen.measured and default.measured:
        mine, theirs = _main(chosen.measured), _main(default.measured)
        if mine.low is None or theirs.high is None:
            notes.append("one round says nothing of how far runs differ: measure more (--rounds 3)")
        elif mine.low <= theirs.high:
            notes.append(
                f"the intervals of both overlap ({mine} and the default's {theirs}): the gain may "
                "be chance"
            )
    return Choice(chosen, default, verified, tuple(notes))


def _main(served: Served) -> Figure:
    return served.output_tokens_per_s if served.goodput_per_s is None else served.goodput_per_s

"""What a stage of a measured model takes: its part of the constants of the whole model's steps.

Of what rows take, all stages have a part of the layers' products, by the bytes of their weights:
where arithmetic binds, products of one form take as long as they have weights, too. What is
computed for selected rows alone, the output matrix above all, is read once in each step however
many there are, and is the last stage's: in a step of one token it is a part of the bytes, and more
tokens take more of the layers alone. What a sequence and its cached tokens take is divided by the
layers that cache them.

Together the stages take what the model does, in steps of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.cache.geometry import Window
from penstock.plan.costs import PlanCosts
from penstock.plan.plan import Plan
from penstock.simulate.step_times import StepTimes, WindowShare

_TOKENS = 8
"""Tokens of the step by which experts' weights are counted, as those by which stages are cut."""


@dataclass(frozen=True)
class _Weight:
    """What a plan has to do, in the units by which stages share constants."""

    layers: float
    """Bytes of weights that are multiplied by every row."""
    selected: float
    """Bytes of those that selected rows alone are multiplied by."""
    mixing: int
    """Ops that mix tokens."""
    cached: Counter[Window | None]
    """Bytes of a token that they read, for each window."""

    @classmethod
    def of(cls, plan: Plan) -> _Weight:
        layers = selected = 0.0
        mixing, cached = 0, Counter[Window | None]()
        for each, count in PlanCosts.of(plan).counts:
            if each.work == "product":
                moved = count * each.weight_bytes * each.touched(_TOKENS)
                if each.rows.base == "T":
                    layers += moved
                else:
                    selected += moved
            elif each.work in ("attention", "state"):
                mixing += count
                if each.work == "attention":
                    cached[each.window] += count * max(each.token_bytes, 1)
        return cls(layers, selected, mixing, cached)


def read_bytes(plan: Plan) -> float:
    """Bytes of weights that a step of few tokens reads."""
    own = _Weight.of(plan)
    return own.layers + own.selected


def stage_times(times: StepTimes, whole: Plan, stages: Sequence[Plan]) -> tuple[StepTimes, ...]:
    """The constants of each of the ``stages`` into which the ``whole`` plan was cut, whose own
    constants are ``times``."""
    total, each = _Weight.of(whole), [_Weight.of(stage) for stage in stages]
    # What selected rows take in a step of the fewest tokens, and so in every step.
    once = times.rows[0] * total.selected / max(total.layers + total.selected, 1.0)
    return tuple(
        _part(times, once, total, own, number == len(each) - 1) for number, own in enumerate(each)
    )


def _part(times: StepTimes, once: float, total: _Weight, own: _Weight, last: bool) -> StepTimes:
    layers = own.layers / max(total.layers, 1.0)
    mixing = own.mixing / max(total.mixing, 1)
    return msgspec.structs.replace(
        times,
        rows=tuple((row - once) * layers + (once if last else 0.0) for row in times.rows),
        sequence=times.sequence * mixing,
        sample=times.sample if last else 0.0,
        chunk=times.chunk * mixing,
        behind=times.behind * layers,
        windows=tuple(_share(share, total, own) for share in times.windows),
    )


def _share(share: WindowShare, total: _Weight, own: _Weight) -> WindowShare:
    part = own.cached[share.seen] / max(total.cached[share.seen], 1)
    return msgspec.structs.replace(share, share=share.share * part)

"""Which kernels a launch runs for which rows: rows of one kind go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.backends.cuda.sample_state import DeviceSampleState


class Span(NamedTuple):
    """A part of ``LaunchPlan.order``."""

    first: int
    size: int


_NONE = Span(0, 0)


class Batch(NamedTuple):
    """Rows that share scratch memory, and so follow or precede other batches."""

    adjusted: Span
    """All, if their options change their logits, else none."""
    weighed: Span
    """Rows that draw from the whole vocabulary."""
    cut_by_rank: Span
    """Rows with a top-k; they come first in ``truncated``."""
    truncated: Span
    """Rows with a top-k or a top-p."""


@dataclass
class LaunchPlan:
    """Indices of states, in lists that kernels read; a state is in at most four."""

    order: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    counted: Span = _NONE
    """States that need their tokens counted, for penalties."""
    reported: Span = _NONE
    """States that want log-probabilities."""

    def add(self, indices: Sequence[int]) -> Span:
        span = Span(len(self.order), len(indices))
        self.order += indices
        return span

    def indices(self, span: Span) -> list[int]:
        return self.order[span.first : span.first + span.size]


def plan_launch(states: Sequence[DeviceSampleState], batch: int) -> LaunchPlan:
    """Batches of at most ``batch`` rows; rows that want the largest logit as it is are in none."""
    plan = LaunchPlan()
    particular = [i for i, state in enumerate(states) if not state.plain]
    if not particular:
        return plan
    adjusted = [i for i in particular if states[i].changes_logits]
    changed = set(adjusted)
    drawn = [i for i in particular if states[i].is_drawn and i not in changed]
    for start in range(0, len(drawn), batch):
        plan.batches.append(_batch(plan, states, _NONE, drawn[start : start + batch]))
    for start in range(0, len(adjusted), batch):
        span = plan.add(adjusted[start : start + batch])
        some = [i for i in adjusted[start : start + batch] if states[i].is_drawn]
        plan.batches.append(_batch(plan, states, span, some))
    plan.counted = plan.add([i for i in adjusted if states[i].counts is not None])
    plan.reported = plan.add([i for i in particular if states[i].logprobs is not None])
    return plan


def _batch(
    plan: LaunchPlan, states: Sequence[DeviceSampleState], adjusted: Span, drawn: list[int]
) -> Batch:
    weighed = plan.add([i for i in drawn if not states[i].truncates])
    by_rank = plan.add([i for i in drawn if states[i].top_k])
    others = plan.add([i for i in drawn if states[i].truncates and not states[i].top_k])
    truncated = Span(by_rank.first, by_rank.size + others.size)
    return Batch(adjusted, weighed, by_rank, truncated)

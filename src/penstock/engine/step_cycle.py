"""One cycle of the engine: draft, schedule a step, submit it, and take in what was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.constraints import Constraints
from penstock.engine.step_runner import StepRunner
from penstock.engine.updates import UpdateMaker
from penstock.interface.messages import SequenceUpdate
from penstock.scheduler.draft import Draft
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState

if TYPE_CHECKING:
    from penstock.speculate.speculation import Speculation

_PATIENCE_S = 0.002
"""Longest time, in seconds, that a step waits for grammar masks while another step runs."""


class StepCycle:
    """Decides when steps are scheduled, submitted and taken in, with drafts and grammar masks.

    With an executor of depth 2 a step is scheduled and submitted while the one before it runs,
    whose updates :meth:`advance` then returns; they are the same as if steps did not overlap.
    Before a step for which there may be drafts, and after one that has some, the step in flight is
    taken in first. With a deeper executor, or one that knows no placeholders, sequences are divided
    among as many steps as may be in flight.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        constraints: Constraints,
        runner: StepRunner,
        updates: UpdateMaker,
        late_masks: bool,
    ) -> None:
        """``late_masks``: the executor takes grammar masks after the step (``Capabilities``)."""
        self._scheduler = scheduler
        self._constraints = constraints
        self._runner = runner
        self._updates = updates
        self._late_masks = late_masks

    def advance(self, speculation: Speculation | None) -> list[SequenceUpdate]:
        """Schedule and submit the next step, if there is one; return what came of steps that were
        taken in, and the ends of sequences whose grammars are complete."""
        constraints = self._constraints
        ended: list[SequenceUpdate] = []
        if constraints.active and constraints.num_awaiting:
            ended = [self._scheduler.conclude(sequence) for sequence in constraints.release()]
        drafts, features = None, False
        if speculation is not None:
            if self._must_be_taken_in(speculation):
                ended += self._updates.take_in(self._runner.take_in(), speculation)
            drafts = self._drafts(speculation)
        masks_pending = may_be_late = False
        if constraints.active:
            if not self._late_masks and drafts:  # the host draws, when the logits are there
                may_be_late = True
            elif not self._late_masks:
                constraints.wait_for_all(_PATIENCE_S)
            masks_pending = constraints.num_awaiting > 0
        step = self._scheduler.schedule(drafts, masks_pending)
        if step is None and masks_pending and not self._runner.in_flight:
            if not ended:
                constraints.wait()
            return ended
        if speculation is not None and step is not None:
            features = speculation.wants_features(step)
        ended += self._updates.take_in(
            self._runner.advance(step, features, may_be_late), speculation
        )
        return ended

    def _must_be_taken_in(self, speculation: Speculation) -> bool:
        """Whether a step is in flight on whose tokens the drafts of the next one depend, or that
        there are none."""
        if not self._runner.in_flight:
            return False
        return not self._runner.can_go_on or speculation.may_draft(
            self._scheduler.running, self._scheduler.max_num_batched_tokens
        )

    def _drafts(self, speculation: Speculation) -> dict[SequenceState, Draft]:
        if self._runner.in_flight:
            speculation.skip()
            return {}
        return speculation.drafts(self._scheduler.running, self._scheduler.max_num_batched_tokens)

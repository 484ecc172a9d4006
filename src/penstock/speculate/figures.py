"""Counters of speculation over the engine's life."""

from __future__ import annotations

from penstock.interface.messages import DraftStats


class Figures:
    """Counts drafts, of at most ``num_tokens`` tokens but for those of predictions, and what was
    accepted of them."""

    def __init__(self, num_tokens: int) -> None:
        self.steps = 0
        self.draft_seconds = 0.0
        self._drafts = 0
        self._drafted = 0
        self._levels = 0
        self._rejections = 0
        self._accepted = [0] * (num_tokens + 1)  # drafts by how many of their tokens were accepted

    def add(self, drafted: int, depth: int, accepted: int) -> None:
        """Count a verified draft of ``drafted`` tokens, of which ``accepted`` were accepted."""
        self._drafts += 1
        self._drafted += drafted
        self._levels += depth
        self._rejections += accepted < depth
        short = 1 + accepted - len(self._accepted)
        if short > 0:  # what a client predicts may be longer than what a proposer drafts
            self._accepted += [0] * short
        self._accepted[accepted] += 1

    def snapshot(self) -> DraftStats:
        """Return the present counts."""
        by_position = []
        left = 0
        for count in reversed(self._accepted[1:]):
            left += count
            by_position.append(left)
        by_position.reverse()
        return DraftStats(
            steps=self.steps,
            drafts=self._drafts,
            draft_tokens=self._drafted,
            draft_levels=self._levels,
            accepted_tokens=sum(by_position),
            rejections=self._rejections,
            accepted_by_position=by_position,
            draft_seconds=self.draft_seconds,
        )

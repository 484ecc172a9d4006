"""How often drafts are accepted, as measured: of one sequence, and of all."""

from __future__ import annotations

from collections.abc import Collection

_KEPT = 0.97
"""Of older verifications, with each new one at the same position: the last 33 or so count."""
_KEPT_OF_ALL = 0.99
"""The same of what is known of all sequences: the last 100."""
_PRIOR = 8.0
"""How many verifications what is known of all sequences counts as, for one of them."""
_FIRST_GUESS = 0.7
_STALE = 32
"""Verifications of any sequence after which what was computed for one is computed again."""


class Acceptance:
    """By group and position: the share of drafts that were accepted.

    Of chains, where the one before was, so that a chain's expectation is a sum of products. Of
    groups in ``trees`` a position is a rank, of which each is counted by itself: a node counts as
    accepted if it is on the accepted path, and a tree's expectation is the sum over its ranks.
    ``common`` holds what is known of all sequences, and is the prior of each; the one without has
    nothing but a guess.
    """

    __slots__ = (
        "_accepted",
        "_common",
        "_gains",
        "_gains_at",
        "_positions",
        "_trees",
        "_tried",
        "count",
        "patience",
        "read",
        "skipped",
    )

    def __init__(
        self,
        groups: int,
        positions: int,
        common: Acceptance | None = None,
        trees: Collection[int] = (),
    ) -> None:
        self._common = common
        self._trees: frozenset[int] = frozenset(trees) if common is None else common._trees
        self._positions = positions
        self._tried = [[0.0] * positions for _ in range(groups)]
        self._accepted = [[0.0] * positions for _ in range(groups)]
        self._gains: list[list[float] | None] = [None] * groups
        self._gains_at = [0] * groups  # common.count when they were computed
        self.count = 0
        """Verifications that were added."""
        self.skipped = 0
        """Steps without a draft, since it would not pay."""
        self.patience = 0
        """After how many of them it is tried all the same."""
        self.read = 0
        """Leading tokens of the sequence that its proposer was shown."""

    def add(self, group: int, drafted: int, accepted: int) -> None:
        """Of a chain of ``drafted`` tokens the first ``accepted`` were."""
        assert group not in self._trees
        tried, hits = self._tried[group], self._accepted[group]
        kept = self._kept
        for position in range(min(accepted + 1, drafted)):
            tried[position] = tried[position] * kept + 1.0
            hits[position] *= kept
            if position < accepted:
                hits[position] += 1.0
        self._added(group)
        if self._common is not None:
            self._common.add(group, drafted, accepted)

    def add_tree(self, group: int, drafted: int, accepted: Collection[int]) -> None:
        """Of a tree's first ``drafted`` ranks, those on the accepted path."""
        assert group in self._trees
        tried, hits = self._tried[group], self._accepted[group]
        kept = self._kept
        for rank in range(drafted):
            tried[rank] = tried[rank] * kept + 1.0
            hits[rank] = hits[rank] * kept + (rank in accepted)
        self._added(group)
        if self._common is not None:
            self._common.add_tree(group, drafted, accepted)

    def rate(self, group: int, position: int) -> float:
        """The likelihood that a draft at ``position`` is accepted; of a chain, when those before it
        were."""
        if self._common is not None:
            guess = self._common.rate(group, position)
        elif group in self._trees:
            guess = _FIRST_GUESS / (position + 1)  # a path has one token of each depth only
        else:
            guess = _FIRST_GUESS
        tried, accepted = self._tried[group][position], self._accepted[group][position]
        return (accepted + _PRIOR * guess) / (tried + _PRIOR)

    def gains(self, group: int) -> list[float]:
        """How many are expected to be accepted of the first token, of the first two, ... Of a
        sequence it is computed anew when it was verified, and now and then."""
        gains = self._gains[group]
        now = 0 if self._common is None else self._common.count
        if gains is not None and now - self._gains_at[group] < _STALE:
            return gains
        gains, total, reached = [], 0.0, 1.0
        chain = group not in self._trees
        for position in range(self._positions):
            rate = self.rate(group, position)
            reached = reached * rate if chain else rate
            total += reached
            gains.append(total)
        self._gains[group], self._gains_at[group] = gains, now
        return gains

    def forget(self, share: float) -> None:
        """Let what is known count for ``share`` of what it did."""
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            tried[:] = [count * share for count in tried]
            accepted[:] = [count * share for count in accepted]
        self.count += _STALE  # so that it is noticed
        self._gains = [None] * len(self._gains)

    @property
    def _kept(self) -> float:
        return _KEPT_OF_ALL if self._common is None else _KEPT

    def _added(self, group: int) -> None:
        self.count += 1
        self._gains[group] = None

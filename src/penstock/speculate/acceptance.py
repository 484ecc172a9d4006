"""How often drafts are accepted, as measured: of one sequence, and of all."""

from __future__ import annotations

_KEPT = 0.97
"""Of older verifications, with each new one at the same position: the last 33 or so count."""
_KEPT_OF_ALL = 0.995
"""The same of what is known of all sequences: the last 200."""
_PRIOR = 8.0
"""How many verifications what is known of all sequences counts as, for one of them."""
_FIRST_GUESS = 0.7


class Acceptance:
    """By group and position: the share of drafts that were accepted where the one before was.

    ``common`` holds what is known of all sequences, and is the prior of each; the one without has
    nothing but a guess.
    """

    __slots__ = ("_accepted", "_common", "_tried", "patience", "skipped")

    def __init__(self, groups: int, positions: int, common: Acceptance | None = None) -> None:
        self._common = common
        self._tried = [[0.0] * positions for _ in range(groups)]
        self._accepted = [[0.0] * positions for _ in range(groups)]
        self.skipped = 0
        """Steps without a draft, since it would not pay."""
        self.patience = 0
        """After how many of them it is tried all the same."""

    def add(self, group: int, drafted: int, accepted: int) -> None:
        """Of ``drafted`` tokens the first ``accepted`` were."""
        tried, hits = self._tried[group], self._accepted[group]
        kept = _KEPT_OF_ALL if self._common is None else _KEPT
        for position in range(min(accepted + 1, drafted)):
            tried[position] = tried[position] * kept + 1.0
            hits[position] *= kept
            if position < accepted:
                hits[position] += 1.0
        if self._common is not None:
            self._common.add(group, drafted, accepted)

    def rate(self, group: int, position: int) -> float:
        """The likelihood that a draft at ``position`` is accepted when those before it were."""
        guess = _FIRST_GUESS
        if self._common is not None:
            guess = self._common.rate(group, position)
        tried, accepted = self._tried[group][position], self._accepted[group][position]
        return (accepted + _PRIOR * guess) / (tried + _PRIOR)

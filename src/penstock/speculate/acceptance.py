"""Estimates how often drafted tokens are accepted, by position, while the engine runs."""

from __future__ import annotations

from collections.abc import Collection

from penstock.speculate.control_parameters import DEFAULTS, ControlParameters


class Acceptance:
    """Estimates the acceptance of drafts of one sequence, or of all sequences together.

    For each kind of drafts and each position it keeps discounted counts of tries and successes
    (as discounted UCB does, Garivier and Moulines 2011), so that what has changed is noticed. The
    estimate is (successes + w * prior) / (tries + w), the mean of a Beta posterior. The prior of a
    sequence is the estimate for all sequences, its ``common`` record. That record's own prior, for
    a position that was seldom tried, is the estimate for the position before.

    In a chain, a position counts as tried if all positions before it were accepted, so that the
    expected number of accepted tokens is a sum of products (Leviathan et al. 2023, whose formula
    (1 - a^(K+1)) / (1 - a) is the case of equal rates). In kinds listed in ``trees``, positions
    are ranks of nodes, each counted by itself: a node succeeds if it is on the accepted path, and
    the expected number is the sum over ranks.

    Three attributes are the controller's notes on the sequence.
    """

    def __init__(
        self,
        kinds: int,
        positions: int,
        common: Acceptance | None = None,
        trees: Collection[int] = (),
        parameters: ControlParameters = DEFAULTS,
    ) -> None:
        """Make a record of ``kinds`` kinds of drafts of at most ``positions`` tokens.

        With a ``common`` record, ``trees`` and ``parameters`` are taken from there.
        """
        self._common = common
        self._trees: frozenset[int] = frozenset(trees) if common is None else common._trees
        self._parameters: ControlParameters = parameters if common is None else common._parameters
        self._discount = (
            self._parameters.common_discount if common is None else self._parameters.discount
        )
        self._positions = positions
        self._tries = [[0.0] * positions for _ in range(kinds)]
        self._successes = [[0.0] * positions for _ in range(kinds)]
        # Estimates are computed when they are asked for, and kept until something was added.
        self._rates: list[list[float] | None] = [None] * kinds  # of the common record only
        self._expected: list[list[float] | None] = [None] * kinds
        self._computed_at = [0] * kinds  # ``common.verifications`` then
        self.verifications = 0
        """Number of drafts that were added."""
        self.steps_skipped = 0
        """Steps in a row in which the sequence could have had a draft and had none."""
        self.is_look = False
        """Whether the draft that is being verified is a look, made to find out and not to gain."""
        self.num_read = 0
        """Leading tokens of the sequence that the proposer has been shown."""

    def add(self, kind: int, drafted: int, accepted: Collection[int]) -> None:
        """Record which of a draft's first ``drafted`` positions, or ranks, were accepted."""
        chain = kind not in self._trees
        tried = min(len(accepted) + 1, drafted) if chain else drafted
        tries, successes = self._tries[kind], self._successes[kind]
        discount = self._discount
        for position in range(tried):
            tries[position] = tries[position] * discount + 1.0
            successes[position] = successes[position] * discount + (position in accepted)
        self.verifications += 1
        self._rates[kind] = self._expected[kind] = None
        if self._common is not None:
            self._common.add(kind, drafted, accepted)

    def rates(self, kind: int) -> list[float]:
        """Return the estimated probabilities that the tokens of a draft are accepted, by position.

        In a chain, each is given that the tokens before it were.
        """
        rates = self._rates[kind]
        if rates is not None:
            return rates
        priors = None if self._common is None else self._common.rates(kind)
        weight, guess = self._parameters.prior_samples, self._parameters.first_guess
        rates = []
        for position in range(self._positions):
            if priors is not None:
                guess = priors[position]
            elif kind in self._trees:
                # A path has one token of each depth only.
                guess = self._parameters.first_guess / (position + 1)
            tries, successes = self._tries[kind][position], self._successes[kind][position]
            guess = (successes + weight * guess) / (tries + weight)
            rates.append(guess)
        if priors is None:
            self._rates[kind] = rates
        return rates

    def expected(self, kind: int) -> list[float]:
        """Return how many tokens of a draft of 1, 2, ... tokens are expected to be accepted.

        What was learnt of other sequences meanwhile is taken into account now and then.
        """
        expected = self._expected[kind]
        now = 0 if self._common is None else self._common.verifications
        if expected is None or now - self._computed_at[kind] >= self._parameters.refresh_interval:
            self._computed_at[kind] = now
            expected, total, reached = [], 0.0, 1.0
            chain = kind not in self._trees
            for rate in self.rates(kind):
                reached = reached * rate if chain else rate
                total += reached
                expected.append(total)
            self._expected[kind] = expected
        return expected

    def forget(self, share: float) -> None:
        """Let what was counted weigh ``share`` of what it did."""
        for counts in (*self._tries, *self._successes):
            counts[:] = [count * share for count in counts]
        self._rates = [None] * len(self._rates)
        self._expected = [None] * len(self._rates)
        self.verifications += self._parameters.refresh_interval  # so that others notice

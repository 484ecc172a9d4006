"""Limits the time that drafts may lose, so that wrong beliefs cost little."""

from __future__ import annotations

from penstock.speculate.control_parameters import DEFAULTS, ControlParameters


class LossBudget:
    """Bounds the time that drafts lose to steps without drafts, and pays for trials out of it.

    This is the rule of a conservative bandit (Wu et al., "Conservative bandits", 2016): an arm
    other than the default one may be played only while what was earned so far, less what the play
    may lose, stays above a given share of what the default would have earned. The default is to
    have no drafts. The unit of all amounts is the time of a plain step.

    Each step pays in a small allowance, and drafts pay in what they saved or take out what they
    lost. Of the allowance at most ``reserve`` is kept, and of savings ``earned_reserve`` more. So
    over any time drafts lose no more than these, the allowance, and the loss of a single step.

    While the budget is closed there are no drafts. It closes when it is overdrawn, and when no
    draft was believed to pay for some steps in a row. It opens again

    - for a trial, in which there are drafts whatever is believed: when it holds what the last trial
      cost, and as many steps have passed as keep trials to a share of the time (epsilon-greedy
      exploration, with an epsilon that falls with the price);
    - when a request arrives, of which something else may be true than of the others: for a single
      step, unless a draft is then believed to pay.
    """

    def __init__(self, alone: bool, parameters: ControlParameters = DEFAULTS) -> None:
        """Make a budget for batches of one size; ``alone`` is that of a single sequence."""
        self._parameters = parameters
        self._allowance = parameters.allowance_alone if alone else parameters.allowance
        self._most = parameters.reserve + parameters.earned_reserve
        self.balance = parameters.reserve
        """Time that may be lost now, in plain steps."""
        self.is_open = True
        """Whether there may be drafts."""
        self.trial_steps = parameters.trial_steps
        """Steps left of a trial."""
        self._trial_cost = parameters.least_trial_cost
        self._earned = 0.0  # since it was opened
        self._drafted = False  # since it was opened
        self._idle_steps = 0  # in a row
        self._waited = 0  # steps since drafts were found not to pay
        self._owed = 0.0  # for reading, to be paid in instalments

    @property
    def is_low(self) -> bool:
        """Whether less than half of what it can hold is left, so that drafts seem to lose."""
        return self.balance < self._most / 2

    def plain_step(self, steps: int = 1, lost: float = 0.0) -> bool:
        """Book ``steps`` without drafts that ``lost`` time to earlier or attempted drafts.

        Returns whether a trial begins.
        """
        self._pay_in(steps, -lost)
        if self.is_open:
            return False
        self._waited += steps
        pause = self._trial_cost / self._parameters.trial_share
        if self._waited < pause or self.balance < self._trial_cost:
            return False
        self._open(self._parameters.trial_steps)
        return True

    def draft_step(self, saved: float, reading: float) -> None:
        """Book a step with drafts, which ``saved`` time, or lost it if negative.

        ``reading`` is the time for which a draft model read prompts besides. As that is of use for
        many steps to come, it is paid in instalments, and at the latest when the budget closes.
        """
        self._drafted = True
        self._idle_steps = 0
        self.trial_steps = max(self.trial_steps - 1, 0)
        self._owed += reading
        due = self._owed / self._parameters.horizon
        self._owed -= due
        self._earned += saved - due
        self._pay_in(1, saved - due)

    def idle(self) -> None:
        """Book that no draft was believed to pay in this step."""
        self._idle_steps += 1
        if self._idle_steps >= self._parameters.trial_steps:
            self._close()

    def arrival(self, reading: float) -> None:
        """Open the budget for one step if it can pay for ``reading`` the prompt that arrived."""
        self._waited += 1
        if not self.is_open and self.balance >= 1.0 + reading:
            self._open(0)
            self._idle_steps = self._parameters.trial_steps - 1

    def _pay_in(self, steps: int, earned: float) -> None:
        left = max(self._parameters.reserve - self.balance, 0.0)
        balance = self.balance + min(steps * self._allowance, left) + earned
        self.balance = min(balance, self._most)
        if self.balance < 0.0 and self.is_open:
            self._close()

    def _open(self, trial_steps: int) -> None:
        self.is_open = True
        self.trial_steps = trial_steps
        self._drafted = False
        self._idle_steps = 0
        self._earned = 0.0

    def _close(self) -> None:
        parameters = self._parameters
        self.is_open = False
        self.balance -= self._owed
        self._earned -= self._owed
        self._owed = 0.0
        if self._drafted:
            cost = max(-self._earned, parameters.least_trial_cost)
            self._trial_cost = min(cost, parameters.most_trial_cost)
        if self._drafted or self.trial_steps:
            self._waited = 0

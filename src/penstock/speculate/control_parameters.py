"""The constants of the control of draft lengths: what each means, its unit, and why it is that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControlParameters:
    """The parameters of :class:`~penstock.speculate.controller.Controller` and of its models.

    A *plain step* is one without drafts; it is also the unit of time where none is named. Where a
    field says "simulated", its value was compared with others on the simulated clock
    (``tests/support/simulated_engine.py``), with the scenarios of
    ``tests/speculate/test_controller.py``.
    """

    # Acceptance

    first_guess: float = 0.7
    """Probability of acceptance before anything was measured. High enough that drafts are tried
    where they may pay; wrong guesses are corrected by a dozen drafts."""
    prior_samples: float = 8.0
    """Number of tries that a prior counts as. Simulated: with 16, acceptance that swings comes to
    less by up to a half; with 4, estimates of steady acceptance are noisier."""
    discount: float = 0.97
    """Weight of a sequence's earlier tries, for each new one: about the last 33 count."""
    common_discount: float = 0.99
    """The same for all sequences together: the last 100, so that a new sequence is not judged by
    the one before it alone."""
    exploration_discount: float = 0.2
    """Share of its weight that the past keeps in a trial, and after a look that succeeded.
    Simulated: with 0.4 and 0.6, sequences that change places come to 0.06 less."""
    refresh_interval: int = 32
    """Verifications after which estimates of a sequence that had none follow those of all
    sequences. Computing them takes 2 us, too much for each sequence and step."""

    # Cost of steps

    first_samples: int = 3
    """Measurements from which a mean begins, as their median: the first finds caches cold. Also
    those that a mean counts as when it is in doubt."""
    memory_samples: int = 20
    """Measurements that a running mean remembers: enough to average noise of 5 %, few enough to
    follow a context that grows."""
    outlier: float = 2.0
    """Multiple of the mean at which a measurement is clipped, and at most charged to drafts. On
    shared machines single steps take ten times as long."""
    exact_rows: int = 32
    """Numbers of rows up to here have means of their own, beyond it eight to a doubling."""
    row_share: float = 0.1
    """Share of a step's time that is believed to grow with its rows while only one number of rows
    is known. It is replaced by the first drafts."""
    nearby: float = 1.125
    """Factor between a known number of rows and another up to which that is known, too: batches
    that grow by one sequence need not be measured each time."""
    probe_growth: float = 1.5
    """Largest step that a draft may cause, as a multiple of the rows of the largest measured one.
    Costs may rise steeply beyond. Simulated: with 3, a batch that grows beyond such a knee comes
    to 0.09 less."""
    free_tokens: int = 8
    """Tokens that a draft model reads beside drafting without taking longer for it."""
    most_charge: float = 32.0
    """Plain steps that one reading is charged at most."""
    most_first_charge: float = 3.0
    """Plain steps that the very first reading is charged at most: a model that was never used
    takes several times as long."""

    # The baseline: what plain steps take

    recovery_steps: int = 8
    """Plain steps after drafts that take longer than usual. Measured with eight sequences of the
    demo model after a draft model: 2.0, 1.9, 1.4, 1.3, 1.3, 1.2, 1.1 and 1.0 ms."""
    timed_steps: int = 6
    """Plain steps that are measured when the baseline is in question. Simulated: 3 do as well where
    acceptance is steady, and worse where it swings."""
    first_period: int = 32
    """Steps with drafts after which the baseline is measured for the second time, and at least
    between any two times. What was measured while the engine warmed up is then corrected."""
    period_growth: int = 4
    """Factor from one such period to the next: the later, the less there is to correct."""
    longest_period: int = 2048
    """Steps up to which periods grow. Measuring takes 14 steps, so 0.7 % at most is missed then."""

    # Loss budget

    allowance: float = 0.008
    """Share of the time that drafts may lose in batches."""
    allowance_alone: float = 0.015
    """The same for one sequence, where there is more to gain. Measured with the demo model: with
    0.008, EAGLE on held-out files gave 0.98 times the speed without drafts, and 1.33 with this."""
    reserve: float = 8.0
    """Plain steps that may be lost at once, and at the start. Finding out that drafts fail takes
    about ten steps of them."""
    earned_reserve: float = 16.0
    """Plain steps that drafts may lose besides, of what they saved. Simulated: where others slow
    the machine down in bursts, so that drafts seem to lose by turns, one stream came to 0.70 of
    the best constant length without this and to 0.96 with it."""
    trial_steps: int = 4
    """Draft steps per trial, and steps in a row in which no draft is believed to pay after which
    none is considered. Four sequences then have 16 drafts."""
    trial_share: float = 0.01
    """Share of the time that trials may take that lose like the last one."""
    least_trial_cost: float = 0.5
    """Least believed cost of a trial in plain steps, so that trials are 50 steps apart or more."""
    most_trial_cost: float = 5.0
    """Largest believed cost, so that they are 500 steps apart or less, and the reserve can pay."""

    # Choice of lengths

    least_speed_up: float = 0.98
    """Speed-up that a draft must promise. A little under 1, since only drafts teach anything and
    the budget bounds what that costs. Simulated: as good as 0.99; with 1, batches of 32 whose
    drafts pay again notice it later."""
    agreement: float = 1.05
    """A sequence has the length that is best on average unless its own best promises so many times
    the speed: all wait for the longest draft. Simulated: with estimates that differ by noise
    alone, each choosing its own length came to 0.83 of the best constant length, this to 0.99."""
    horizon: int = 32
    """Steps in which reading a prompt must pay, and over which it is paid for."""
    trial_sequences: int = 4
    """Sequences of a batch that have drafts in a trial: a draft model must read them first.
    Simulated: with all of 32, that costs another 0.04 of the time at first."""
    look_interval: int = 16
    """Steps from one look to the next, and from a sequence's last draft to a look at it. Simulated:
    with 64, sequences that change places come to 0.13 less."""
    rest_steps: int = 15
    """Steps in a row in which the engine does not ask for drafts while there are none. Asking takes
    10 us, and a step of a small model 500."""


DEFAULTS = ControlParameters()

"""What drafts have cost, beyond what they brought: so that those which fail cost little."""

from __future__ import annotations

_ALLOWED, _ALLOWED_ALONE = 0.008, 0.015
"""Of the time, what may be lost to drafts that fail: in batches, and of a sequence that is alone,
where there is more to gain and what is found of one text says less of the next."""
_FIRST_BALANCE, _MOST_ALLOWED, _LEAST_BALANCE = 8.0, 8.0, -32.0
_MOST_EARNED = 16.0
"""What drafts earned may be lost again, beyond what is allowed to be lost: a sequence whose drafts
fail costs some ten steps before it is known, also where others gain by them. A batch's gains and
losses are more even, and less is kept of them."""
_FOR_TRIALS, _LEAST_PAUSE, _MOST_PAUSE = 0.01, 32, 512
"""Of the time, what trials may take that fail like the last; and steps from one to the next."""
_MARGIN, _LEAST_MARGIN = 1.02, 0.97
"""How many times faster drafts must be believed to be: less is noise. While there is something to
lose, less is tried all the same."""
_TRIAL = 4
"""Steps that have drafts whatever is believed of them, so that it is known."""
_GIVEN_UP = 4
"""Steps in a row for which it was believed that no draft pays."""
_PER_ARRIVAL = 4
"""Steps for each of the others after which a new one is enough to ask anew."""
_LEAST_PRICE = 0.5
_MIXED = 32
"""Steps in a row with prompts in them: who waits for one without waits too long."""
_INSTALMENT = 1 / 32
_NEWEST = 0.05
_TIMED = 6
"""Steps without drafts that are timed when they are to be timed again."""
_UNTIMED = 14
"""What that takes, in steps: the first ones are not what they usually are."""
_FIRST_PERIOD, _SURE = 32, 1.3
_FOR_TIMING, _LEAST_PERIOD, _MOST_PERIOD = 0.003, 128, 2048
"""Of the time, what may be lost to that; and steps from one to the next. At first they are fewer:
if drafts seem to pay because of what was timed badly, that is found early. Where they make it so
many times as fast, that is no reason."""


class Account:
    """Of batches of about one size: whether they are drafted for at all.

    Its unit is the time of a step without drafts. Each step some thousandths are put in, and what
    drafts saved; what they cost beyond what they brought is taken out. While nothing is left there
    are no drafts, nor after it was found that none pay, until a pause has passed and there is as
    much as the last trial cost. So drafts that fail cost these thousandths of the time, whatever is
    believed of them.
    """

    __slots__ = (
        "_allowed",
        "_closed",
        "_debt",
        "_drafted",
        "_earned",
        "_idle",
        "_mixed",
        "_most",
        "_pause",
        "_period",
        "_price",
        "_speed",
        "_untimed",
        "_waited",
        "balance",
        "is_open",
        "to_time",
        "trial",
    )

    def __init__(self, width: int) -> None:
        """``width``: bits of the number of sequences."""
        self.is_open = True
        self.to_time = 0
        """Steps without drafts that are to be timed before there are drafts again."""
        self.trial = _TRIAL
        """Steps that are to have drafts whatever is believed of them."""
        self.balance = _FIRST_BALANCE
        """What may yet be lost."""
        self._closed = 0  # steps since it was
        self._debt = 0.0  # what was spent for many steps to come
        self._drafted = False  # since it was opened
        self._earned = 0.0  # since then
        self._idle = 0  # steps in a row
        self._pause = 0.0
        self._mixed = 0  # steps in a row that could not be timed
        self._allowed = _ALLOWED_ALONE if width == 1 else _ALLOWED
        self._most = _MOST_ALLOWED + _MOST_EARNED / max(width, 1)
        self._period = _FIRST_PERIOD
        self._price = _LEAST_PRICE
        self._speed = 1.0  # tokens a second, as times those without drafts
        self._untimed = 0  # steps
        self._waited = 0  # steps since drafts failed

    @property
    def drafts(self) -> bool:
        """Whether the next step may have drafts."""
        return self.is_open and not self.to_time

    @property
    def margin(self) -> float:
        """How many times faster drafts must be believed to be."""
        share = min(max(self.balance / _MOST_ALLOWED, 0.0), 1.0)
        return _MARGIN + (_LEAST_MARGIN - _MARGIN) * share

    def plain(self, steps: int, lost: float, timed: bool) -> bool:
        """So many steps without drafts; of these, ``lost`` by asking for some, or by what earlier
        drafts left behind.

        ``timed``: the last told what such steps take. Returns whether drafts are to be tried again.
        """
        self._mixed = 0
        if timed:
            self._untimed = 0
            self.to_time = max(self.to_time - 1, 0)
        else:
            self._untimed += steps
        self._put(steps, -lost)
        if self.is_open:
            return False
        self._waited += steps
        self._closed += steps
        if self._waited < self._pause or self.balance < self._price:
            return False
        self._open(_TRIAL)
        return True

    def arrived(self, decoding: int, price: float) -> None:
        """One of ``decoding`` sequences has begun, of which may be true what was not of the others.

        ``price``: of being ready to draft for it.
        """
        self._waited += 1
        self._mixed += 1
        if self._mixed >= _MIXED:
            self.to_time = 0
        if self.is_open or self._closed < _PER_ARRIVAL * (decoding - 1):
            return
        if self.balance >= 1.0 + price:
            self._open(0)
            self._idle = _GIVEN_UP - 1

    def drafted(self, saved: float, spent: float, speed: float) -> bool:
        """A step with drafts, which ``saved`` so much, or cost it, if negative: with ``speed``
        times the tokens a second. ``spent``: besides, for steps to come. Returns whether steps
        without drafts are to be timed again."""
        self._drafted = True
        self._idle = 0
        self._untimed += 1
        self.trial = max(self.trial - 1, 0)
        self._speed += (speed - self._speed) * _NEWEST
        self._debt += spent
        due = self._debt * _INSTALMENT
        self._debt -= due
        self._earned += saved - due
        self._put(1, saved - due)
        lost = max(1.0 - 1.0 / self._speed, 0.0) * _UNTIMED
        period = min(max(lost / _FOR_TIMING, _LEAST_PERIOD), _MOST_PERIOD)
        if self._speed < _SURE:
            period = min(period, self._period)
        if self._untimed < period:
            return False
        self._period = min(self._period * 2, _MOST_PERIOD)
        self.to_time = _TIMED
        return True

    def idle(self) -> None:
        """Nothing that could be drafted was believed to pay."""
        self._idle += 1
        if self._idle >= _GIVEN_UP:
            self._close()

    def _put(self, steps: int, earned: float) -> None:
        allowed = max(min(_MOST_ALLOWED - self.balance, steps * self._allowed), 0.0)
        balance = self.balance + allowed + earned
        self.balance = min(max(balance, _LEAST_BALANCE), self._most)
        if self.balance < 0.0 and self.is_open:
            self._close()

    def _open(self, trial: int) -> None:
        self.is_open = True
        self.trial = trial
        self._drafted = False
        self._idle = 0
        self._earned = 0.0
        if trial:
            self._period = _FIRST_PERIOD

    def _close(self) -> None:
        self.is_open = False
        self.balance = max(self.balance - self._debt, _LEAST_BALANCE)
        self._earned -= self._debt
        self._debt = 0.0
        if self._drafted:
            self._price = min(max(-self._earned, _LEAST_PRICE), _MOST_ALLOWED)
        if self._drafted or self.trial:
            self._waited = 0
        self._pause = min(max(self._price / _FOR_TRIALS, _LEAST_PAUSE), _MOST_PAUSE)
        self._closed = 0

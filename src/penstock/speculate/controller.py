"""How many tokens to draft: as many as make tokens come fastest, by what was measured.

With acceptance a at every position, K drafts bring 1 + a + ... + a^K = (1 - a^(K+1)) / (1 - a)
tokens a step. They are worth it as long as that grows faster than the step's time, which grows with
the rows that verify them and with what drafting them takes. Both are measured here, and acceptance
by position, for each sequence. What steps take without drafts is measured among such steps alone:
drafts leave caches behind in which they take longer. What drafts cost in truth is booked by an
:class:`~penstock.speculate.account.Account`, which has none made where it is too much.

What is chosen steers time alone: the output is the same whatever was drafted
(:mod:`penstock.speculate.verify`), so it may depend on clocks.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

from penstock.speculate.acceptance import Acceptance
from penstock.speculate.account import Account
from penstock.speculate.times import FEW, Made, Times

if TYPE_CHECKING:
    from penstock.scheduler.sequence import Sequence

_MARGIN = 1.02
"""If all were accepted, drafting must promise this much more for a look."""
_LOOK = 2
"""Tokens of a draft that only looks whether drafting would pay, of a sequence that is alone."""
_LOOKING = 4
"""Sequences of a batch that have such drafts in one step: a model must read them first."""
_FIRST_PATIENCE, _MOST_PATIENCE = 16, 256
"""Steps without a draft before such a look, for a sequence among others that have drafts."""
_BETWEEN_LOOKS = 16
"""Steps from one such look to the next, whoever looks: in a batch, looks of each by itself would be
in nearly every step. What one finds is told to all (``Acceptance``)."""
_SETTLED = 8
"""Steps without drafts after which the next such one takes what it takes without speculation. Of
eight sequences of the demo model, after drafts by a model: 2.0, 1.9, 1.4, 1.3, 1.3, 1.2, 1.1 and
1.0 ms, and so on."""
_REST = 15
"""Steps that are not looked at while there are no drafts: to look costs 10 us, and a step of a
small model 500."""
_FIRST_TIMED = 8
"""Steps without drafts before there are any."""
_HORIZON = 64
"""Steps in which reading a sequence must pay: not much more is known of its future."""
_OLD = 0.4
"""How much of what was known of acceptance counts in a trial after a pause."""


class Offer(NamedTuple):
    """A sequence that can have a draft of at most ``most`` tokens, of a group."""

    sequence: Sequence
    group: int
    most: int


class Controller:
    """Chooses lengths of drafts. Not thread-safe.

    ``trees``: the groups whose drafts are trees, of which a length counts ranks. ``reads``: whether
    the proposer reads all of a sequence before it drafts, which takes time.
    """

    def __init__(
        self, groups: int, num_tokens: int, trees: Collection[int] = (), reads: bool = True
    ) -> None:
        self._groups = groups
        self._num_tokens = num_tokens
        self._reads = reads
        self._common = Acceptance(groups, num_tokens, trees=trees)  # of all sequences
        self._times = Times(num_tokens, reads)
        self._unread = 0  # tokens that the drafts that were asked for last have read
        self._accounts: dict[int, Account] = {}  # by the width of decoding sequences
        self._account = self._account_of(1)
        self._plain_steps = 0  # in a row
        self._since_look = _BETWEEN_LOOKS  # steps
        self._accepted = 0  # drafts of the step that is being taken in

    @property
    def drafts(self) -> bool:
        """Whether the next step may have any, if it is like the last one."""
        return self._account.drafts

    def lengths(self, offers: Seq[Offer], decoding: int) -> list[int]:
        """How many tokens to draft for each, or to verify of its draft.

        ``decoding`` sequences are in the step: what pays for one depends on what the others' rows
        cost. They are taken to be like this one.
        """
        account = self._account = self._account_of(decoding)
        lengths = [0] * len(offers)
        self._unread = 0
        if not offers or not account.drafts:
            return lengths
        if not self._times.plain.knows(decoding):
            account.to_time = _FIRST_TIMED
            return lengths
        # The youngest: they have the longest way to go.
        first = max(len(offers) - _LOOKING, 0) if account.trial else 0
        prices = self._times.prices(decoding, len(offers) - first)
        for i in range(first, len(offers)):
            lengths[i] = self._length(offers[i], account, prices, decoding, len(offers) - first)
        if self._reads and not any(lengths):
            account.idle()
        return lengths

    def gain(self, record: Acceptance, group: int, count: int) -> float:
        """How many of a draft's first ``count`` tokens are expected to be accepted."""
        return record.gains(group)[count - 1] if count else 0.0

    def verified(self, sequence: Sequence, group: int, drafted: int, accepted: int) -> None:
        """Of a draft of ``drafted`` tokens the first ``accepted`` were accepted."""
        self._accepted += accepted
        self._record(sequence).add(group, drafted, accepted)

    def tree_verified(
        self, sequence: Sequence, group: int, drafted: int, accepted: Collection[int]
    ) -> None:
        """Of a tree's first ``drafted`` ranks, these were on the accepted path."""
        self._accepted += len(accepted)
        self._record(sequence).add_tree(group, drafted, accepted)

    def plain_took(self, decoding: int, steps: int, seconds: float, asking: float) -> int:
        """A step of ``decoding`` rows without drafts; asking for some took ``asking`` besides.

        It is the last of so many such ``steps``, of which the others were not looked at. Returns
        how many need no look now: there will be no drafts in them.
        """
        account = self._account = self._account_of(decoding)
        self._since_look += steps
        self._plain_steps += steps
        timed = self._plain_steps > _SETTLED
        if timed:
            self._times.plain.add(decoding, seconds)
        usual = self._times.plain.seconds(decoding)
        lost = asking
        if not timed:
            lost += min(max(seconds - usual, -usual), usual)
        if account.plain(steps, lost / usual if usual else 0.0, timed):
            self._common.forget(_OLD)
            self._times.doubt()
        return _REST if timed and not account.is_open else 0

    def arrived(self, decoding: int, tokens: int) -> None:
        """So many ``tokens`` of prompts were read in a step of ``decoding`` sequences."""
        plain = self._times.plain.seconds(decoding)
        reading = tokens * self._times.reading / plain if plain else 0.0
        self._account.arrived(decoding, reading)

    def drafts_took(self, made: Made, decoding: int, drafted: int, seconds: float | None) -> None:
        """A step of ``decoding`` sequences that verified ``drafted`` tokens.

        ``seconds`` is None if it had other rows, too, and tells nothing.
        """
        account = self._account = self._account_of(decoding)
        self._since_look += 1
        self._plain_steps = 0
        plain = self._times.plain.seconds(decoding)
        verifying = self._times.verified(decoding, drafted, seconds)
        drafting, reading = self._times.made(made, self._unread, plain)
        gained, self._accepted = self._accepted / decoding, 0
        if plain:
            took = (verifying + drafting) / plain
            saved = 1.0 + gained - took
            if account.drafted(saved, reading / plain, (1.0 + gained) / took):
                self._times.plain.renew(decoding)

    def _length(
        self, offer: Offer, account: Account, prices: list[float], decoding: int, drafting: int
    ) -> int:
        sequence, group, most = offer
        record = self._record(sequence)
        best, best_rate, possible = 0, 0.0, 0.0
        for count in range(1, min(most, len(prices)) + 1):
            price = prices[count - 1] * decoding
            rate = (decoding + drafting * self.gain(record, group, count)) / price
            possible = max(possible, (decoding + drafting * count) / price)
            if rate > best_rate:
                best, best_rate = count, rate
        if best_rate < account.margin:
            best = 0
        unread = self._to_read(sequence, record)
        if best and unread * self._times.reading > self._worth(offer, best_rate, decoding):
            best = 0
        if best:
            record.skipped, record.patience = 0, _FIRST_PATIENCE
        elif self._may_read(unread, account, decoding) and (
            account.trial or self._looks(record, account, possible)
        ):
            best = min(_LOOK if decoding == 1 else 1, most)
        if best and self._reads:
            self._unread += unread
            record.read = len(sequence.token_ids)
        return best

    def _may_read(self, unread: int, account: Account, decoding: int) -> bool:
        """Whether a look is worth reading so much, beside what is read for others."""
        if not unread:
            return True
        seconds = (self._unread + unread) * self._times.reading
        return seconds <= account.balance * self._times.plain.seconds(decoding)

    def _looks(self, record: Acceptance, account: Account, possible: float) -> bool:
        """Whether to look all the same; not where all might be accepted and it would not pay."""
        record.skipped += 1
        if record.skipped < record.patience or self._since_look < _BETWEEN_LOOKS:
            return False
        if possible <= _MARGIN or account.balance < 1.0:
            return False
        self._since_look = 0
        record.skipped = 0
        record.patience = min(record.patience * 2, _MOST_PATIENCE)
        return True

    def _to_read(self, sequence: Sequence, record: Acceptance) -> int:
        unread = len(sequence.token_ids) - record.read if self._reads else 0
        return unread if unread > FEW else 0

    def _worth(self, offer: Offer, rate: float, decoding: int) -> float:
        """Seconds that drafts for this sequence may save yet."""
        sequence = offer.sequence
        steps = min(sequence.max_total_tokens - len(sequence.token_ids), _HORIZON)
        return (rate - 1.0) * self._times.plain.seconds(decoding) / decoding * steps

    def _account_of(self, decoding: int) -> Account:
        width = decoding.bit_length()
        account = self._accounts.get(width)
        if account is None:
            account = self._accounts[width] = Account(width)
        return account

    def _record(self, sequence: Sequence) -> Acceptance:
        record = sequence.acceptance
        if record is None:
            record = Acceptance(self._groups, self._num_tokens, self._common)
            record.patience = _FIRST_PATIENCE
            sequence.acceptance = record
        assert isinstance(record, Acceptance)
        return record

"""Start-time fair queueing: how much each account was served, and whose turn is next."""

from __future__ import annotations

from dataclasses import dataclass

_PAST_ENTRIES = 1024
"""Departed names whose times are kept, beyond the number of live ones."""


@dataclass
class _Account:
    weight: float
    time: float
    """The cost that was served, divided by the weight, from the start time on."""
    live: int = 0
    waiting: int = 0


class VirtualTimes:
    """Start-time fair queueing (Goyal, Vin, Cheng 1996) among named accounts.

    The cost of a request is charged while or after it is served, as Sheng et al., "Fairness in
    serving large language models" (2024), do where it is not known beforehand. The unit of the
    cost is the caller's: tokens, or seconds.

    The account that was served least, by weight, goes first. An account that was idle resumes at
    the start time of the most recently admitted request, if its own is earlier. So being idle
    earns no credit, and using what nobody else wanted incurs no debt. While two accounts always
    have waiting requests, the difference of what they are served, divided by their weights, is
    bounded.

    An account is kept while it has live requests, waiting or running. Of those that departed, the
    times that are ahead of the others' are kept, so that leaving between requests gains nothing;
    at most as many as there are live accounts, and 1,024 more.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, float] = {}
        """Times of departed names that are still ahead of ``_present``."""
        self._present = 0.0
        """The latest start time of an admitted request: where an idle account resumes."""

    def __len__(self) -> int:
        """The number of accounts with live requests."""
        return len(self._accounts)

    def names(self) -> list[str]:
        """The accounts with live requests."""
        return list(self._accounts)

    def enter(self, name: str, weight: float) -> None:
        """Add a live request to an account. Its weight is the latest one given."""
        account = self._accounts.get(name)
        if account is None:
            time = max(self._past.pop(name, 0.0), self._present)
            account = self._accounts[name] = _Account(weight, time)
        account.weight = weight
        account.live += 1

    def leave(self, name: str) -> None:
        """Remove a live request, which must not be waiting, from an account."""
        account = self._accounts[name]
        account.live -= 1
        if account.live == 0:
            del self._accounts[name]
            if not self._accounts:
                self._past.clear()
                return
            if account.time > self._present:
                self._past[name] = account.time
            if len(self._past) > _PAST_ENTRIES + len(self._accounts):
                self._prune()

    def wait(self, name: str) -> None:
        """A live request of an account begins to wait."""
        account = self._accounts[name]
        if account.waiting == 0:
            account.time = max(account.time, self._present)
        account.waiting += 1

    def wait_no_more(self, name: str) -> None:
        """A request of an account waits no longer: it is admitted, or it is withdrawn."""
        self._accounts[name].waiting -= 1

    def let_in(self, name: str) -> None:
        """A waiting request of an account is admitted."""
        self._present = max(self._present, self._accounts[name].time)

    def serve(self, name: str, cost: float) -> None:
        """Charge a cost to an account."""
        account = self._accounts[name]
        account.time += cost / account.weight

    def time(self, name: str) -> float:
        """The virtual time of an account. The smallest goes first."""
        return self._accounts[name].time

    def shares(self, places: float) -> dict[str, float]:
        """The share of each account, by weight, when ``places`` are divided among them."""
        total = sum(account.weight for account in self._accounts.values())
        return {name: places * each.weight / total for name, each in self._accounts.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts agree."""
        for name, account in self._accounts.items():
            assert 0 <= account.waiting <= account.live, (
                f"{name!r} has more waiting requests than live ones"
            )
            assert account.live > 0, f"{name!r} is kept without a live request"
        assert not self._past.keys() & self._accounts.keys(), "a live account is kept as departed"

    def _prune(self) -> None:
        """Advance the present to the least live time, and forget the past behind it.

        If that does not halve ``_past``, its lower half is forgotten: those names lose the least
        debt, and gain no more by it than names that are new. Halving keeps the work of a departure
        constant on average.
        """
        least = min(account.time for account in self._accounts.values())
        self._present = max(self._present, least)
        ahead = [(time, name) for name, time in self._past.items() if time > self._present]
        kept = len(self._past) // 2
        if len(ahead) > kept:
            ahead = sorted(ahead)[-kept:]
        self._past = {name: time for time, name in ahead}

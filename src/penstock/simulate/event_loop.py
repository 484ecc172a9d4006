"""A server's event loop, as a clock sees it: it does one thing after the other."""

from __future__ import annotations


class EventLoop:
    """When it comes to what it is given, in seconds from the run's start.

    Steps are known up to the end of the one that runs, so chunks of that end may be written here
    before a request is that was sent earlier: it does not wait for them. That they would wait for
    it is left out.
    """

    def __init__(self) -> None:
        self._free = 0.0  # when it has done what came before ``_latest``
        self._latest: list[tuple[float, float]] = []  # times and seconds of the latest chunks

    def ask(self, at: float, seconds: float) -> float:
        """A request that is sent at a time, and keeps it for so many seconds; returns when it comes
        to it."""
        while self._latest and self._latest[0][0] <= at:
            came, taken = self._latest.pop(0)
            self._free = max(self._free, came) + taken
        begun = max(at, self._free)
        self._free = begun + seconds
        return begun

    def write(self, at: float, seconds: float) -> float:
        """Chunks of a step or of a pause that ends at a time, none earlier than those before;
        returns when it comes to them."""
        latest = self._latest
        while latest and latest[0][0] < at:
            came, taken = latest.pop(0)
            self._free = max(self._free, came) + taken
        begun = max(at, self._free, *(came + taken for came, taken in latest))
        latest.append((at, seconds))
        return begun

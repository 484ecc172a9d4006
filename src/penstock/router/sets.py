"""Sets of a fleet's replicas, as numbers whose bits are theirs, kept until one of them changes.

Each request asks for some of them. To look at a thousand replicas takes 200 us, and they change a
few times a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.router.replica import Replica

_MOST: Final = 1024
"""Sets that are kept: clients name models, and may name any."""


class ReplicaSets:
    """Sets of those of some replicas that have a number."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        """``replicas`` may come and go; whoever changes them, or one of them, calls
        :meth:`renew`."""
        self._replicas = replicas
        self._kept: dict[tuple[str, str | None], int] = {}

    def renew(self) -> None:
        """Note that a replica has changed."""
        self._kept.clear()

    def able(self, model: str | None) -> int:
        """Those that take requests for a model; None: for whatever they have."""
        return self._set("able", model, lambda r: r.state == "ready" and r.serves(model))

    @property
    def late(self) -> int:
        """Those that let a question of the router's own wait."""
        return self._set("late", None, lambda replica: replica.is_late)

    @property
    def synchronized(self) -> int:
        """Those of which all that they have reported is known."""
        return self._set("synchronized", None, lambda replica: replica.synchronized)

    def on_time(self, among: int) -> int:
        """Those of a set that are not late; all, if all are."""
        return among & ~self.late or among

    def _set(self, name: str, model: str | None, belongs: Callable[[Replica], bool]) -> int:
        found = self._kept.get((name, model))
        if found is None:
            numbers = (r.number for r in self._replicas if r.number is not None and belongs(r))
            found = sum(1 << number for number in numbers)
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[name, model] = found
        return found

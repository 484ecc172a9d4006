"""Decides which models of a repository are loaded, and which make room for others.

The books know no engines, no tasks and no clock: whatever happens is told to them with its time,
and what is to be done are the :class:`~penstock.repository.slot.Order` values that
they return.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.processes.restarts import RestartPolicy
from penstock.repository.errors import LoadFailedError, NoRoomError, UnknownModelError
from penstock.repository.room import Room
from penstock.repository.slot import HOLDS, Order, Slot

PATIENCE_S = 2.0
"""Seconds that a model waits for others to become idle before some of them take no new requests:
longer than most answers, so that a moment without requests usually comes by itself."""


class Books:
    """The models of a repository, by their states, over one budget of memory.

    The rules. Models are loaded in the order in which they were asked for first. One that does not
    fit waits until others have made room (:class:`~penstock.repository.room.Room`). Of those that
    are closed for it while they are in use, new requests wait in turn, so that a model which is
    always in use keeps nobody from another. A model with open requests is never unloaded.
    """

    def __init__(
        self,
        budget: int,
        patience_s: float = PATIENCE_S,
        pauses: RestartPolicy = RestartPolicy(max_restarts=1 << 30),  # noqa: B008
    ) -> None:
        self._pauses = pauses
        self._slots: dict[str, Slot] = {}
        self._room = Room(self._slots, budget, patience_s)
        self._tickets = 0

    def __iter__(self) -> Iterator[Slot]:
        """All, those included that are taken out and not gone yet."""
        return iter(list(self._slots.values()))

    def __getitem__(self, name: str) -> Slot:
        """Raises UnknownModelError."""
        slot = self._slots.get(name)
        if slot is None or slot.removed:
            raise UnknownModelError(name)
        return slot

    @property
    def budget(self) -> int:
        """The bytes that all models together may take."""
        return self._room.budget

    @property
    def held(self) -> int:
        """Bytes of all models that are in memory, or on their way in or out."""
        return self._room.held

    # The catalogue

    def add(self, name: str, keep_s: float | None, now: float) -> list[Order]:
        """Take in a model, or its changed entry: one that is loaded is then loaded anew for the
        next request."""
        slot = self._slots.get(name)
        if slot is None:
            self._slots[name] = Slot(name, usual_keep_s=keep_s, keep_s=keep_s, used_at=now)
            return []
        slot.removed, slot.usual_keep_s, slot.keep_s = False, keep_s, keep_s
        orders = []
        if slot.state in ("sizing", *HOLDS):
            slot.stale = True
        elif slot.state == "queued":
            orders = slot.size()
        else:
            slot.state, slot.need, slot.failures = "unloaded", None, 0
        slot.close()
        return [*orders, *self.plan(now)]

    def set_budget(self, budget: int, now: float) -> list[Order]:
        """Have all models together take so many bytes from now on."""
        self._room.budget = budget
        orders = []
        for slot in self:
            if slot.state == "queued" and (slot.need or 0) > budget:
                slot.state, slot.asked = "unloaded", False
                orders += slot.refuse(self._no_room(slot))
        return [*orders, *self.plan(now)]

    def remove(self, name: str, failure: Exception, now: float) -> list[Order]:
        """Take out a model; requests that wait for it fail, and those that use it end first."""
        slot = self[name]
        slot.removed, slot.asked = True, False
        orders = slot.refuse(failure)
        if slot.state in ("unloaded", "queued", "failed"):
            del self._slots[name]
        slot.close()
        return [*orders, *self.plan(now)]

    # Requests

    def ask(self, name: str, now: float) -> tuple[int | None, list[Order]]:
        """A request wants the model. Returns the life of the model that it uses from now on, or
        None if it waits, until an order admits or refuses it.

        Raises UnknownModelError, NoRoomError, and LoadFailedError until the next try is due.
        """
        slot = self[name]
        slot.keep_s = slot.usual_keep_s
        if slot.state == "ready":
            slot.open += 1
            slot.used_at = now
            return slot.life, []
        self._check(slot, now)
        slot.waiting += 1
        return None, self._enqueue(slot, now)

    def gave_up(self, name: str, now: float) -> list[Order]:
        """A request that waited has left."""
        slot = self._slots[name]
        assert slot.waiting, "it was admitted or refused"
        slot.waiting -= 1
        if slot.state == "queued" and not slot.wanted:
            slot.state = "unloaded"
        return self.plan(now)

    def left(self, name: str, life: int, now: float) -> list[Order]:
        """A request that used that life of the model has ended."""
        slot = self._slots.get(name)
        if slot is None or slot.life != life:
            return []
        slot.open -= 1
        slot.used_at = now
        return self.plan(now)

    def keep(self, name: str, seconds: float | None, now: float) -> list[Order]:
        """Have the model unloaded so many seconds after the last request, None for never, until
        a request comes that says nothing."""
        self[name].keep_s = seconds
        return self.plan(now)

    # The administrator

    def load(self, name: str, now: float) -> list[Order]:
        """Have the model loaded, also right after a failure. Raises UnknownModelError and
        NoRoomError."""
        slot = self[name]
        slot.retry_at = now
        if slot.state == "ready" or (slot.state == "closing" and slot.for_room):
            slot.state, slot.used_at = "ready", now
            return slot.admit()
        self._check(slot, now)
        slot.asked, slot.unwanted, slot.failure = True, False, None
        return self._enqueue(slot, now)

    def unload(self, name: str, now: float) -> list[Order]:
        """Have the model unloaded once no request uses it; a later one loads it again. Raises
        UnknownModelError."""
        slot = self[name]
        slot.asked = False
        if slot.state == "queued" and not slot.waiting:
            slot.state = "unloaded"
        slot.unwanted = slot.state == "loading"
        slot.close()
        return self.plan(now)

    # What became of orders

    def sized(self, name: str, need: int, now: float) -> list[Order]:
        """The model needs so many bytes."""
        slot = self._slots[name]
        assert slot.state == "sizing"
        if slot.removed:  # and nobody waits
            del self._slots[name]
            return self.plan(now)
        if slot.stale:
            return slot.size()
        slot.need = need
        if need > self.budget:
            slot.state, slot.asked = "unloaded", False
            return [*slot.refuse(self._no_room(slot)), *self.plan(now)]
        slot.state = "queued" if slot.wanted else "unloaded"
        return self.plan(now)

    def loaded(self, name: str, takes: int, now: float) -> list[Order]:
        """The model is loaded, and takes so many bytes."""
        slot = self._slots[name]
        assert slot.state == "loading"
        slot.need = takes
        slot.asked = False
        if takes > self.budget or slot.removed:
            orders = [] if slot.removed else slot.refuse(self._no_room(slot))
            slot.state = "unloading"
            return [*orders, Order("unload", name), *self.plan(now)]
        slot.state, slot.used_at = "ready", now
        slot.failures, slot.failure = 0, None
        slot.life += 1
        slot.loads += 1
        orders = slot.admit()
        if slot.stale or slot.unwanted:
            slot.close()
        slot.unwanted = False
        return [*orders, *self.plan(now)]

    def failed(self, name: str, error: Exception, now: float) -> list[Order]:
        """The model was not sized or not loaded, or its engine is lost for good; its memory is
        free. Requests that wait for it fail."""
        slot = self._slots[name]
        slot.failures += 1
        slot.failed_loads += 1
        pause = self._pauses.pause(slot.failures)
        assert pause is not None, "it may always be tried again"
        slot.retry_at = now + pause
        slot.life += 1  # what used it has no part in what is loaded next
        slot.state, slot.open = "failed", 0
        slot.forget_need()
        slot.asked = slot.unwanted = False
        orders = slot.refuse(LoadFailedError(name, str(error), pause))
        if slot.removed:
            del self._slots[name]
        return [*orders, *self.plan(now)]

    def unloaded(self, name: str, now: float) -> list[Order]:
        """The model's memory is free."""
        slot = self._slots[name]
        assert slot.state == "unloading"
        slot.unloads += 1
        slot.state = "unloaded"
        slot.forget_need()
        if slot.removed:
            del self._slots[name]
        elif slot.need is not None and slot.need > self.budget:
            return [*slot.refuse(self._no_room(slot)), *self.plan(now)]
        elif slot.wanted:
            return self._enqueue(slot, now)
        return self.plan(now)

    # The plan

    def plan(self, now: float) -> list[Order]:
        """What is to be done now that was not before. To be asked again at :meth:`next_at`."""
        orders: list[Order] = []
        for slot in self:
            if slot.expires_at <= now:
                slot.close()
        while (head := self._room.next) is not None:
            assert head.need is not None
            if head.need > self.budget - self.held:
                self._room.make(head, now)
                break
            head.state = "loading"
            orders.append(Order("load", head.name))
        else:
            self._room.make_up()
            for slot in self:
                if slot.state == "closing" and slot.for_room:
                    slot.state = "ready"
                    orders += slot.admit()
        for slot in self:
            if slot.state == "closing" and not slot.open:
                slot.state = "unloading"
                orders.append(Order("unload", slot.name))
        return orders

    def next_at(self) -> float | None:
        """When the plan may change by time alone."""
        soonest = min((slot.expires_at for slot in self), default=float("inf"))
        soonest = min(soonest, self._room.impatient_at)
        return None if soonest == float("inf") else soonest

    def check(self) -> None:
        """Raise AssertionError if the books do not agree with themselves."""
        for slot in self:
            assert slot.open >= 0, slot
            assert slot.waiting >= 0, slot
            assert not slot.open or slot.state in ("ready", "closing"), slot
            assert not slot.waiting or slot.state not in ("unloaded", "ready", "failed"), slot
            assert slot.state not in ("queued", *HOLDS) or slot.need is not None, slot

    # Private

    def _check(self, slot: Slot, now: float) -> None:
        if slot.need is not None and slot.need > self.budget:
            raise self._no_room(slot)
        if slot.state == "failed" and now < slot.retry_at:
            assert slot.failure is not None
            raise LoadFailedError(slot.name, _why(slot.failure), slot.retry_at - now)

    def _no_room(self, slot: Slot) -> NoRoomError:
        assert slot.need is not None
        return NoRoomError(slot.name, slot.need, self.budget)

    def _enqueue(self, slot: Slot, now: float) -> list[Order]:
        if slot.state in ("unloaded", "failed"):
            self._tickets += 1
            slot.ticket, slot.queued_at = self._tickets, now
            if slot.need is None:
                return slot.size()
            slot.state = "queued"
        return self.plan(now)


def _why(failure: Exception) -> str:
    """The cause of a failure, without what was said around it before."""
    return getattr(failure, "why", str(failure))

"""Gives models by their names, and loads and unloads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Generic

from penstock.errors import EngineDeadError, OverloadedError, PenstockError, UnavailableError
from penstock.repository.books import Books
from penstock.repository.catalogue import Catalogue, ModelEntry
from penstock.repository.errors import RemovedError, UnknownModelError
from penstock.repository.loaded import Lease, Loader, M, ModelStatus
from penstock.repository.slot import Order, Slot
from penstock.repository.waiting import Waiting

MAX_WAITING = 1024
"""Requests that may wait for models to be loaded."""

_log = logging.getLogger("penstock.models")


class Repository(Generic[M]):
    """The models of a catalogue, each loaded where it is needed. Belongs to one event loop.

    A request :meth:`enter`\\ s a model by its name, waits until it is loaded where it is not, and
    holds a :class:`Lease` of it to its end. What is loaded and unloaded when, within ``budget``
    bytes where the catalogue names no others, is decided by
    :class:`~penstock.repository.books.Books`; this carries it out, in a task for each model that
    comes or goes.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader[M],
        budget: int,
        most_waiting: int = MAX_WAITING,
        books: Books | None = None,
    ) -> None:
        self.catalogue = catalogue
        self._usual_budget = budget
        self._loader = loader
        self._most_waiting = most_waiting
        self._books = books or Books(catalogue.memory_bytes or budget)
        self._models: dict[str, M] = {}
        self._waiting: Waiting[M] = Waiting()
        self._phases: dict[str, str] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._coming: set[asyncio.Task[None]] = set()
        self._going: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._closed = False
        for entry in catalogue:
            self._obey(self._books.add(entry.name, entry.keep_alive_s, time.monotonic()))

    @property
    def budget(self) -> int:
        return self._books.budget

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that models have now."""
        return self._books.held

    def find(self, name: str) -> ModelEntry:
        """The entry of this name or alias. Raises UnknownModelError."""
        entry = self.catalogue.find(name)
        if entry is None:
            raise UnknownModelError(name)
        return entry

    async def enter(self, name: str) -> Lease[M]:
        """Return the model of this entry once it is loaded.

        Raises UnknownModelError, NoRoomError, LoadFailedError, OverloadedError where too many
        requests wait, and UnavailableError at the end of the server.
        """
        if self._closed:
            raise _closed()
        waiting = self._waiting
        if len(waiting) >= self._most_waiting and self._books[name].state != "ready":
            raise OverloadedError(f"{len(waiting):,} requests wait for models to be loaded")
        life, orders = self._books.ask(name, time.monotonic())
        if life is not None:
            return self._lease(name)
        waiter = waiting.join(name)
        self._obey(orders)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiting.leave(name, waiter):
                self._obey(self._books.gave_up(name, time.monotonic()))
            raise

    def keep(self, name: str, seconds: float | None) -> None:
        """Have the model stay for so many seconds after its last request, None for good, until a
        request comes that says nothing else."""
        self._obey(self._books.keep(name, seconds, time.monotonic()))

    async def load(self, name: str) -> None:
        """Load a model; returns when it is. Raises as :meth:`enter` does."""
        slot = self._books[name]
        self._obey(self._books.load(name, time.monotonic()))
        while slot.state not in ("ready", "closing") and slot.asked:
            await self._change()
        if slot.state not in ("ready", "closing") and slot.failure is not None:
            raise slot.failure

    async def unload(self, name: str) -> None:
        """Unload a model once no request uses it; returns when it is. Raises UnknownModelError."""
        slot = self._books[name]
        self._obey(self._books.unload(name, time.monotonic()))
        life = slot.life
        while slot.life == life and slot.state in ("loading", "closing", "unloading"):
            await self._change()

    def reload(self, catalogue: Catalogue) -> list[str]:
        """Put another catalogue in force; returns the names of models that came, changed or went.

        What did not change stays as it is. A model that changed or went serves the requests that
        use it to their ends.
        """
        before = {entry.name: entry for entry in self.catalogue}
        after = {entry.name: entry for entry in catalogue}
        self.catalogue = catalogue
        now = time.monotonic()
        touched = [name for name, entry in after.items() if before.get(name) != entry]
        gone = [name for name in before if name not in after]
        for name in gone:
            self._obey(self._books.remove(name, RemovedError(name), now))
        for name in touched:
            self._obey(self._books.add(name, after[name].keep_alive_s, now))
        self._obey(self._books.set_budget(catalogue.memory_bytes or self._usual_budget, now))
        self.begin()
        return [*touched, *gone]

    def begin(self) -> None:
        """Begin to load the models that are to be there from the start."""
        for entry in self.catalogue:
            if entry.at_start and self._books[entry.name].state == "unloaded":
                with contextlib.suppress(PenstockError):  # the status says it
                    self._obey(self._books.load(entry.name, time.monotonic()))

    def status(self, name: str) -> ModelStatus[M]:
        """Raises UnknownModelError."""
        slot = self._books[name]
        return self._status(self.find(name), slot)

    def statuses(self) -> list[ModelStatus[M]]:
        return [self._status(entry, self._books[entry.name]) for entry in self.catalogue]

    def check(self) -> None:
        """Raise AssertionError if the books and what is loaded do not agree."""
        self._books.check()
        for slot in self._books:
            assert slot.waiting == self._waiting.count(slot.name), slot
            assert (slot.name in self._models) == (slot.state in ("ready", "closing")), slot

    async def aclose(self) -> None:
        """Unload all; requests that wait fail with UnavailableError. Safe to repeat."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.refuse_all(_closed)
        self._changed.set()
        tasks = [*self._coming, *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._going, return_exceptions=True)
        models, self._models = self._models, {}
        await asyncio.gather(*(model.aclose() for model in models.values()), return_exceptions=True)

    # Private

    def _status(self, entry: ModelEntry, slot: Slot) -> ModelStatus[M]:
        return ModelStatus(
            entry=entry,
            state=slot.state,
            model=self._models.get(slot.name),
            open=slot.open,
            waiting=slot.waiting,
            need=slot.need,
            phase=self._phases.get(slot.name, ""),
            failure=None if slot.failure is None else str(slot.failure),
            keep_s=slot.keep_s,
            idle_s=0.0 if slot.open else time.monotonic() - slot.used_at,
            loads=slot.loads,
            unloads=slot.unloads,
            failed_loads=slot.failed_loads,
        )

    def _slot(self, name: str) -> Slot:
        """What the books know, also of a model that was taken out and is not gone yet."""
        return next(slot for slot in self._books if slot.name == name)

    def _lease(self, name: str) -> Lease[M]:
        life = self._books[name].life

        def leave() -> None:
            if not self._closed:
                self._obey(self._books.left(name, life, time.monotonic()))

        return Lease(self._models[name], leave)

    async def _change(self) -> None:
        await self._changed.wait()
        if self._closed:
            raise _closed()

    def _obey(self, orders: list[Order]) -> None:
        """Carry out what the books order, and ask them again when time alone may change that."""
        for order in orders:
            match order.deed:
                case "size":
                    _start(self._size(order.name), self._coming)
                case "load":
                    _start(self._load(order.name), self._coming)
                case "unload":
                    _start(self._unload(order.name), self._going)
                case "admit":
                    self._waiting.admit(order.name, partial(self._lease, order.name))
                case "refuse":
                    assert order.failure is not None
                    self._waiting.refuse(order.name, order.failure)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._books.next_at()
        if at is None or self._closed:
            return
        wait = max(0.0, at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait, self._plan)

    def _plan(self) -> None:
        self._obey(self._books.plan(time.monotonic()))

    async def _size(self, name: str) -> None:
        try:  # the entry may have been taken out since
            need = await self._loader.size(self.find(name))
        except Exception as error:
            self._failed(name, error)
            return
        self._obey(self._books.sized(name, need, time.monotonic()))

    async def _load(self, name: str) -> None:
        began = time.monotonic()

        def progress(phase: str, done: float, num_bytes: int) -> None:
            self._phases[name] = f"{phase} ({done:.0%})" if done else phase

        self._phases[name] = "starting"
        entry = self.catalogue.find(name)
        try:
            if entry is None:
                raise RemovedError(name)
            model = await self._loader.load(entry, progress)
        except Exception as error:
            self._failed(name, error)
            return
        finally:
            self._phases.pop(name, None)
        self._models[name] = model
        seconds = time.monotonic() - began
        _log.warning("%s is loaded after %.1f s, %d bytes", name, seconds, model.takes_bytes)
        self._watches[name] = asyncio.ensure_future(self._watch(name, model))
        self._obey(self._books.loaded(name, model.takes_bytes, time.monotonic()))

    async def _watch(self, name: str, model: M) -> None:
        """Take a model out that cannot serve any more."""
        try:
            await model.lost()
            error: Exception = EngineDeadError("its engine has ended")
        except Exception as failure:
            error = failure
        if self._slot(name).state == "unloading":  # it goes already
            return
        del self._watches[name], self._models[name]
        self._failed(name, error)
        await model.aclose()

    async def _unload(self, name: str) -> None:
        model, watch = self._models.pop(name), self._watches.pop(name)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        try:
            await model.aclose()
            _log.warning("%s is unloaded", name)
        except Exception:
            _log.exception("%s did not end as it should; its memory counts as free", name)
        if not self._closed:
            self._obey(self._books.unloaded(name, time.monotonic()))

    def _failed(self, name: str, error: Exception) -> None:
        """Whatever the error is: a model that is neither loaded nor failed would be waited for
        without end."""
        if isinstance(error, PenstockError | OSError):
            _log.error("%s: %s", name, error)
        else:
            _log.error("%s: an error that nobody expects here", name, exc_info=error)
            error = PenstockError(f"{type(error).__name__}: {error}")
        self._obey(self._books.failed(name, error, time.monotonic()))


def _start(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
    task = asyncio.ensure_future(work)
    among.add(task)
    task.add_done_callback(among.discard)


def _closed() -> UnavailableError:
    return UnavailableError("the server is shutting down")

"""The books of a repository: rules for one model and another, and any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.repository.books import Books
from penstock.repository.errors import (
    LoadFailedError,
    NoRoomError,
    RemovedError,
    UnknownModelError,
)
from penstock.repository.slot import Order

SIZES = {"a": 40, "b": 50, "c": 60, "d": 100, "huge": 101}


def books(**sizes: int) -> Books:
    """The books of models whose sizes are known."""
    made = Books(100)
    for name, size in sizes.items():
        made.add(name, None, 0.0)
        assert made.load(name, 0.0) == [Order("size", name)]
        made.unload(name, 0.0)
        assert made.sized(name, size, 0.0) == []
    return made


def ready(made: Books, *names: str) -> None:
    """Load and use each, one after the other."""
    for now, name in enumerate(names, 1):
        life, orders = made.ask(name, now)
        assert (life, orders) == (None, [Order("load", name)])
        assert made.loaded(name, SIZES[name], now) == [Order("admit", name)]
        made.left(name, made[name].life, now)


def test_a_model_is_sized_and_loaded_before_its_requests_are_let_in() -> None:
    made = Books(100)
    made.add("a", None, 0)
    assert made.ask("a", 0) == (None, [Order("size", "a")])
    assert made.ask("a", 0) == (None, [])
    assert made.sized("a", 40, 0) == [Order("load", "a")]
    assert made.loaded("a", 45, 0) == [Order("admit", "a")]
    assert (made["a"].open, made.held) == (2, 45)
    assert made.ask("a", 0) == (1, [])


def test_the_least_recently_used_makes_room_and_only_as_many_as_must() -> None:
    made = books(a=40, b=50, c=60)
    ready(made, "a", "b")
    life, _ = made.ask("a", 3.0)
    assert life is not None
    made.left("a", life, 4.0)
    assert made.ask("c", 5.0) == (None, [Order("unload", "b")])
    assert made.unloaded("b", 6.0) == [Order("load", "c")]
    assert made["a"].state == "ready"


def test_a_model_in_use_stays_and_after_a_while_takes_no_new_requests() -> None:
    made = books(a=40, c=60, d=100)
    ready(made, "a")
    life, _ = made.ask("a", 2.0)
    assert life is not None
    assert made.ask("d", 3.0) == (None, [])
    assert made.ask("a", 4.0)[0] == life  # until patience is over
    made.left("a", life, 4.5)
    assert made.next_at() == 5.0
    assert made.plan(5.0) == []
    assert made["a"].state == "closing"
    assert made.ask("a", 5.5) == (None, [])  # it waits in turn
    assert made.left("a", life, 6.0) == [Order("unload", "a")]
    assert made.unloaded("a", 7.0) == [Order("load", "d")]
    assert made.loaded("d", 100, 8.0) == [Order("admit", "d")]
    made.left("d", 1, 9.0)
    assert made["d"].state == "unloading"  # for the request that waits for a


def test_who_gives_up_lets_the_others_stay() -> None:
    made = books(a=40, d=100)
    ready(made, "a")
    life, _ = made.ask("a", 2.0)
    made.ask("d", 2.0)
    made.plan(9.0)
    assert made.ask("a", 9.0) == (None, [])
    assert made.gave_up("d", 9.0) == [Order("admit", "a")]
    assert (made["a"].state, made["a"].open) == ("ready", 2)
    assert life == made["a"].life


def test_no_idle_model_leaves_before_that_is_enough() -> None:
    made = books(a=40, b=50, d=100)
    ready(made, "a", "b")
    life, _ = made.ask("b", 5.0)
    assert life is not None
    assert made.ask("d", 6.0) == (None, [])
    assert made["a"].state == "ready"
    assert made.left("b", life, 7.0) == [Order("unload", "a"), Order("unload", "b")]


def test_a_model_that_never_fits_is_refused_with_both_numbers() -> None:
    made = Books(100)
    made.add("huge", None, 0)
    made.ask("huge", 0)
    assert made.sized("huge", 101, 0) == [Order("refuse", "huge")]
    with pytest.raises(NoRoomError, match=r"needs 101 bytes .* may take 100;"):
        made.ask("huge", 0)


def test_one_that_turns_out_not_to_fit_is_ended() -> None:
    made = books(a=40)
    made.ask("a", 0)
    assert made.loaded("a", 150, 0) == [Order("refuse", "a"), Order("unload", "a")]
    assert isinstance(made["a"].failure, NoRoomError)


def test_one_that_takes_more_than_was_known_has_idle_ones_leave() -> None:
    made = books(a=40, b=50)
    ready(made, "a")
    made.ask("b", 2.0)
    assert made.loaded("b", 70, 3.0) == [Order("admit", "b"), Order("unload", "a")]


def test_a_failed_load_is_tried_again_later_or_by_request() -> None:
    made = books(a=40)
    made.ask("a", 0.0)
    assert made.failed("a", ValueError("no such file"), 0.0) == [Order("refuse", "a")]
    with pytest.raises(LoadFailedError, match="'a' could not be loaded: no such file") as caught:
        made.ask("a", 0.25)
    assert caught.value.retry_s == 0.75
    assert made.load("a", 0.25) == [Order("load", "a")]
    made.failed("a", ValueError("no such file"), 0.5)
    assert made.ask("a", 2.5) == (None, [Order("load", "a")])


def test_an_engine_that_is_lost_holds_no_memory_and_no_requests() -> None:
    made = books(a=40)
    ready(made, "a")
    life, _ = made.ask("a", 2.0)
    assert life is not None
    made.failed("a", ValueError("it died"), 2.0)
    assert (made.held, made["a"].open) == (0, 0)
    made.ask("a", 9.0)
    made.loaded("a", 40, 9.0)
    assert made.left("a", life, 9.0) == []  # of the life before
    assert made["a"].open == 1


def test_a_changed_entry_is_loaded_anew_when_its_requests_have_ended() -> None:
    made = books(a=40)
    ready(made, "a")
    life, _ = made.ask("a", 2.0)
    assert life is not None
    assert made.add("a", None, 2.0) == []
    assert made.ask("a", 3.0) == (None, [])
    assert made.left("a", life, 4.0) == [Order("unload", "a")]
    assert made.unloaded("a", 4.0) == [Order("size", "a")]


def test_a_removed_model_refuses_who_waits_and_ends_who_uses_it() -> None:
    made = books(a=40, d=100)
    ready(made, "a")
    life, _ = made.ask("a", 2.0)
    assert life is not None
    made.ask("d", 2.0)
    assert made.remove("d", RemovedError("d"), 2.0) == [Order("refuse", "d")]
    assert made.remove("a", RemovedError("a"), 2.0) == []
    with pytest.raises(UnknownModelError):
        made.ask("a", 2.0)
    assert made.left("a", life, 3.0) == [Order("unload", "a")]
    made.unloaded("a", 3.0)
    assert list(made) == []


def test_an_idle_model_leaves_when_its_time_is_over() -> None:
    made = books(a=40)
    ready(made, "a")
    assert made.keep("a", 5.0, 1.0) == []
    assert made.next_at() == 6.0
    assert made.plan(6.0) == [Order("unload", "a")]


class AnySequence(RuleBasedStateMachine):
    """Events in any order. What is known of the world is what orders said."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(100)
        self.now = 0.0
        self.doing: dict[str, str] = {}
        """The order of each model that is being carried out."""
        self.using: list[tuple[str, int]] = []
        self.waiting: list[str] = []
        self.held: dict[str, int] = {}
        """The bytes of each model that is in memory, or on its way there."""
        for name in SIZES:
            self.obey(self.books.add(name, None, 0.0))

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            name = order.name
            if order.deed in ("size", "load", "unload"):
                assert name not in self.doing, f"{order} while {self.doing[name]}"
                if order.deed == "unload":
                    life = self.slot(name).life
                    assert (name, life) not in self.using, "a request lost its model"
                if order.deed == "load":
                    need = self.slot(name).need
                    assert need is not None
                    self.held[name] = need
                    assert sum(self.held.values()) <= 100, "it does not fit"
                self.doing[name] = order.deed
                continue
            admitted = [each for each in self.waiting if each == name]
            self.waiting = [each for each in self.waiting if each != name]
            assert admitted
            if order.deed == "admit":
                self.using += [(name, self.slot(name).life)] * len(admitted)

    def slot(self, name: str):
        return next(slot for slot in self.books if slot.name == name)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def ask(self, name: str) -> None:
        try:
            life, orders = self.books.ask(name, self.now)
        except (NoRoomError, LoadFailedError, UnknownModelError):
            return
        if life is None:
            self.waiting.append(name)
            self.obey(orders)
        else:
            self.using.append((name, life))

    @precondition(lambda self: self.using)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name, life = self.using.pop(data.draw(st.integers(0, len(self.using) - 1)))
        self.obey(self.books.left(name, life, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.obey(self.books.gave_up(name, self.now))

    @precondition(lambda self: self.doing)
    @rule(data=st.data(), fails=st.booleans(), more=st.sampled_from([0, 0, 7, 70]))
    def done(self, data: st.DataObject, fails: bool, more: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.doing)))
        deed = self.doing.pop(name)
        if deed == "unload" or fails:
            self.held.pop(name, None)
        if deed == "unload":
            self.obey(self.books.unloaded(name, self.now))
        elif fails:
            self.obey(self.books.failed(name, ValueError("why"), self.now))
        elif deed == "size":
            self.obey(self.books.sized(name, SIZES[name], self.now))
        else:
            self.held[name] = SIZES[name] + more
            self.obey(self.books.loaded(name, SIZES[name] + more, self.now))

    @rule(name=st.sampled_from(sorted(SIZES)), deed=st.sampled_from(["load", "unload", "add"]))
    def administer(self, name: str, deed: str) -> None:
        try:
            if deed == "add":
                self.obey(self.books.add(name, None, self.now))
            else:
                self.obey(getattr(self.books, deed)(name, self.now))
        except (NoRoomError, UnknownModelError):
            pass

    @rule(name=st.sampled_from(sorted(SIZES)))
    def remove(self, name: str) -> None:
        if any(slot.name == name and not slot.removed for slot in self.books):
            self.obey(self.books.remove(name, RemovedError(name), self.now))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def die(self, name: str) -> None:
        for slot in self.books:
            if slot.name == name and slot.state in ("ready", "closing"):
                del self.held[name]
                self.obey(self.books.failed(name, ValueError("it died"), self.now))
                self.using = [each for each in self.using if each[0] != name]

    @rule(name=st.sampled_from(sorted(SIZES)), seconds=st.sampled_from([None, 0.0, 3.0]))
    def keep(self, name: str, seconds: float | None) -> None:
        if any(slot.name == name and not slot.removed for slot in self.books):
            self.obey(self.books.keep(name, seconds, self.now))

    @rule(seconds=st.sampled_from([0.5, 5.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.obey(self.books.plan(self.now))

    @invariant()
    def they_agree(self) -> None:
        self.books.check()
        for slot in self.books:
            assert slot.waiting == self.waiting.count(slot.name)
            assert slot.open == self.using.count((slot.name, slot.life))
        assert self.books.plan(self.now) == [], "the plan was not finished"

    def teardown(self) -> None:
        """When all end that are open, and all loads succeed, everybody is served."""
        for _ in range(400):
            self.now += 3.0
            self.obey(self.books.plan(self.now))
            for name, deed in list(self.doing.items()):
                del self.doing[name]
                if deed == "unload":
                    del self.held[name]
                    self.obey(self.books.unloaded(name, self.now))
                elif deed == "size":
                    self.obey(self.books.sized(name, SIZES[name], self.now))
                else:
                    self.held[name] = SIZES[name]
                    self.obey(self.books.loaded(name, SIZES[name], self.now))
            for name, life in self.using:
                self.using = self.using[1:]
                self.obey(self.books.left(name, life, self.now))
            if not (self.waiting or self.using or self.doing):
                return
        raise AssertionError(f"still waiting: {self.waiting}")


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=25, stateful_step_count=30)

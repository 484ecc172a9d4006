"""What makes room first, against a list that is looked through."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.retention import Lru

ITEMS = st.integers(0, 15)


@dataclass
class _Naive:
    """An item of the list."""

    item: int
    parent: int | None
    at: float
    turn: int
    is_again: bool


class Naive:
    """The same order, item by item."""

    def __init__(self, once_ages: float) -> None:
        self.once_ages = once_ages
        self.items: dict[int, _Naive] = {}
        self.gone: list[int] = []
        self.turn = 0

    def add(self, item: int, parent: int | None, at: float, is_again: bool) -> None:
        self.turn += 1
        self.items[item] = _Naive(item, parent, at, self.turn, is_again or item in self.gone)
        self.gone = [each for each in self.gone if each != item]

    def use(self, item: int, at: float) -> None:
        self.items[item].is_again = True
        self.keep(item, at)

    def keep(self, item: int, until: float) -> None:
        self.turn += 1
        found = self.items[item]
        found.at, found.turn = max(found.at, until), self.turn

    def order(self, each: _Naive, now: float) -> tuple[float, int]:
        age = now - each.at
        return (-age if each.is_again or age < 0 else -age * self.once_ages), each.turn

    def drop(self, item: int) -> None:
        gone = self.items.pop(item)
        self.gone = [*self.gone, item][-2 * len(self.items) :] if self.items else []
        before = None if gone.parent is None else self.items.get(gone.parent)
        if before is not None:
            before.at = max(before.at, gone.at)

    def children(self, item: int) -> list[int]:
        return [each.item for each in self.items.values() if each.parent == item]

    def victims(self, count: int, now: float, staying: set[int]) -> list[int]:
        copy = Naive(self.once_ages)
        copy.items = {item: _Naive(*vars(each).values()) for item, each in self.items.items()}
        victims: list[int] = []
        while len(victims) < count:
            ends = [
                (self.order(each, now), each.item)
                for each in copy.items.values()
                if not copy.children(each.item) and each.item not in staying
            ]
            if not ends:
                break
            victims.append(min(ends)[1])
            copy.drop(victims[-1])
        return victims


@pytest.mark.parametrize("once_ages", [1.0, 2.0])
@given(st.data())
def test_ends_of_chains_make_room_in_the_order_of_their_uses(
    once_ages: float, data: st.DataObject
) -> None:
    lru, naive = Lru[int](once_ages), Naive(once_ages)
    for _ in range(data.draw(st.integers(1, 60))):
        item, at = data.draw(ITEMS), data.draw(st.integers(0, 9))
        if item not in naive.items:
            # A parent has a lower number, as in a tree of chains, and need not be there.
            parent = data.draw(st.none() | st.integers(0, item - 1)) if item else None
            is_again = data.draw(st.booleans())
            lru.add(item, parent, at, is_again)
            naive.add(item, parent, at, is_again)
        else:
            match data.draw(st.sampled_from(["use", "keep", "drop"])):
                case "use":
                    lru.use(item, at)
                    naive.use(item, at)
                case "keep":
                    lru.keep(item, at)
                    naive.keep(item, at)
                case "drop":
                    lru.drop(item)
                    naive.drop(item)
        assert len(lru) == len(naive.items)
        count, staying = data.draw(st.integers(0, 6)), set(data.draw(st.lists(ITEMS, max_size=3)))
        now = data.draw(st.integers(0, 12))
        victims = lru.victims(count, now, staying)
        assert victims == naive.victims(count, now, staying)
        assert victims == lru.victims(count, now, staying), "it was changed by a look at it"


def test_what_was_used_once_makes_room_for_what_was_used_again() -> None:
    """Unless it was used in the younger half of the other's age."""
    lru = Lru[str]()
    for at, item in enumerate(("first", "again", "later", "latest")):
        lru.add(item, None, at)
    lru.use("again", 1)
    assert lru.victims(4, 10) == ["first", "later", "latest", "again"]
    assert lru.victims(4, 4) == ["first", "later", "again", "latest"]


def test_what_comes_again_was_used_before() -> None:
    lru = Lru[str]()
    for item in ("first", "second"):
        lru.add(item, None, 0)
    lru.drop("first")
    lru.add("first", None, 1)
    lru.add("third", None, 2)
    assert lru.victims(3, 10) == ["second", "third", "first"]


def test_what_comes_before_several_is_as_recent_as_the_last_of_them() -> None:
    """Whichever of them makes room last: what was used once does so before what was used again."""
    lru = Lru[int](2.0)
    lru.add(1, None, 0.0, is_again=True)
    lru.add(2, 1, 1.0)
    lru.add(3, 1, 0.0, is_again=True)
    lru.add(0, None, 0.0, is_again=True)
    assert lru.victims(4, 3.0) == [2, 3, 0, 1]

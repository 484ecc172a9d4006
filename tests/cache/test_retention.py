"""What makes room first, against a list that is looked through."""

from __future__ import annotations

from dataclasses import dataclass

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


class Naive:
    """The same order, item by item."""

    def __init__(self) -> None:
        self.items: dict[int, _Naive] = {}
        self.turn = 0

    def add(self, item: int, parent: int | None, at: float) -> None:
        self.turn += 1
        self.items[item] = _Naive(item, parent, at, self.turn)

    def use(self, item: int, at: float) -> None:
        self.turn += 1
        found = self.items[item]
        found.at, found.turn = max(found.at, at), self.turn

    def drop(self, item: int) -> None:
        gone = self.items.pop(item)
        before = None if gone.parent is None else self.items.get(gone.parent)
        if before is not None:
            before.at = max(before.at, gone.at)

    def children(self, item: int) -> list[int]:
        return [each.item for each in self.items.values() if each.parent == item]

    def victims(self, count: int, staying: set[int]) -> list[int]:
        copy = Naive()
        copy.items = {item: _Naive(*vars(each).values()) for item, each in self.items.items()}
        victims: list[int] = []
        while len(victims) < count:
            ends = [
                (each.at, each.turn, each.item)
                for each in copy.items.values()
                if not copy.children(each.item) and each.item not in staying
            ]
            if not ends:
                break
            victims.append(min(ends)[2])
            copy.drop(victims[-1])
        return victims


@given(st.data())
def test_ends_of_chains_make_room_in_the_order_of_their_uses(data: st.DataObject) -> None:
    lru, naive = Lru[int](), Naive()
    for _ in range(data.draw(st.integers(1, 60))):
        item, at = data.draw(ITEMS), data.draw(st.integers(0, 9))
        if item not in naive.items:
            # A parent has a lower number, as in a tree of chains, and need not be there.
            parent = data.draw(st.none() | st.integers(0, item - 1)) if item else None
            lru.add(item, parent, at)
            naive.add(item, parent, at)
        elif data.draw(st.booleans()):
            lru.use(item, at)
            naive.use(item, at)
        else:
            lru.drop(item)
            naive.drop(item)
        assert len(lru) == len(naive.items)
        count, staying = data.draw(st.integers(0, 6)), set(data.draw(st.lists(ITEMS, max_size=3)))
        victims = lru.victims(count, staying)
        assert victims == naive.victims(count, staying)
        assert victims == lru.victims(count, staying), "it was changed by a look at it"

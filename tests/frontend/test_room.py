"""Who still gets in where all places are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OverloadedError, RequestError
from penstock.frontend.room import Room
from penstock.interface.messages import Tenant

A, B, C = Tenant("a"), Tenant("b"), Tenant("c", 2.0)


def test_one_may_have_all_places_while_nobody_else_asks() -> None:
    room = Room(10)
    for _ in range(10):
        room.check(A, 1)
        room.enter(A, 1)
    with pytest.raises(OverloadedError, match="10 of them yours"):
        room.check(A, 1)


def test_nobody_can_keep_others_out() -> None:
    room = Room(10)
    room.enter(A, 10)
    for _ in range(5):
        room.check(B, 1)
        room.enter(B, 1)
    for refused in (A, B):
        with pytest.raises(OverloadedError):
            room.check(refused, 1)
    room.check(C, 5)  # of weight 2 in 4
    with pytest.raises(OverloadedError):
        room.check(C, 6)
    room.leave(A, 6)
    room.check(A, 1)


def test_more_than_there_will_ever_be_is_the_requests_fault() -> None:
    with pytest.raises(RequestError) as caught:
        Room(4).check(A, 5)
    assert caught.value.param == "n"
    Room(None).check(A, 10**6)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.booleans())))
def test_it_never_holds_more_than_twice_its_places(asked: list[tuple[int, int, bool]]) -> None:
    room = Room(16)
    inside: list[tuple[Tenant, int]] = []
    for name, count, leaves in asked:
        if leaves and inside:
            tenant, held = inside.pop()
            room.leave(tenant, held)
            continue
        tenant = Tenant(f"{name}", 1.0 + name % 3)
        try:
            room.check(tenant, count)
        except OverloadedError:
            continue
        room.enter(tenant, count)
        inside.append((tenant, count))
        assert room.taken == sum(each for _, each in inside) <= 32
    for tenant, held in inside:
        room.leave(tenant, held)
    assert room.taken == 0
    room.check(A, 16)

"""Who still gets in where all places are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OverloadedError, RequestError
from penstock.frontend.open_sequences import OpenSequences, Place
from penstock.interface.messages import Tenant

A, B, C = Tenant("a"), Tenant("b"), Tenant("c", 2.0)


def test_one_may_have_all_places_while_nobody_else_asks() -> None:
    opened = OpenSequences(10)
    for _ in range(10):
        opened.check(A, 1)
        opened.add(A, 1)
    with pytest.raises(OverloadedError, match="10 of them yours"):
        opened.check(A, 1)


def test_nobody_can_keep_others_out() -> None:
    opened = OpenSequences(10)
    opened.add(A, 10)
    for _ in range(5):
        opened.check(B, 1)
        opened.add(B, 1)
    for refused in (A, B):
        with pytest.raises(OverloadedError):
            opened.check(refused, 1)
    opened.check(C, 5)  # of weight 2 in 4
    with pytest.raises(OverloadedError):
        opened.check(C, 6)
    opened.remove(A, 6)
    opened.check(A, 1)


def test_more_than_there_will_ever_be_is_the_requests_fault() -> None:
    with pytest.raises(RequestError) as caught:
        OpenSequences(4).check(A, 5)
    assert caught.value.param == "n"
    OpenSequences(None).check(A, 10**6)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.booleans())))
def test_it_never_holds_more_than_twice_its_places(asked: list[tuple[int, int, bool]]) -> None:
    opened = OpenSequences(16)
    inside: list[tuple[Tenant, int]] = []
    for name, count, leaves in asked:
        if leaves and inside:
            tenant, held = inside.pop()
            opened.remove(tenant, held)
            continue
        tenant = Tenant(f"{name}", 1.0 + name % 3)
        try:
            opened.check(tenant, count)
        except OverloadedError:
            continue
        opened.add(tenant, count)
        inside.append((tenant, count))
        assert opened.count == sum(each for _, each in inside) <= 32
    for tenant, held in inside:
        opened.remove(tenant, held)
    assert opened.count == 0
    opened.check(A, 16)


def test_a_place_is_kept_whatever_the_limit_becomes() -> None:
    opened = OpenSequences(4)
    place = Place(opened, A, 4)
    with pytest.raises(OverloadedError):
        opened.check(A, 1)
    opened.limit = 2
    assert place.take(3)
    assert opened.count == 1
    opened.add(A, 3)
    assert not place.take(2)  # it has one left
    assert opened.count == 4
    place.close()
    place.close()
    assert opened.count == 3
    assert not place.take(1)
    opened.remove(A, 3)
    assert opened.count == 0


def test_there_are_no_more_places_than_sequences_may_be_open() -> None:
    opened = OpenSequences(4)
    opened.add(A, 2)
    with pytest.raises(OverloadedError):
        Place(opened, A, 3)
    assert opened.count == 2
    Place(opened, A, 2).close()
    assert opened.count == 2

"""The choice of bits under a budget, beside trying all ways."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quantize.budget import STEPS, Budget, Option, least_loss

OPTIONS = st.lists(
    st.builds(Option, st.integers(0, 12), st.integers(0, 30).map(float)), min_size=1, max_size=4
)


@given(st.lists(OPTIONS, min_size=1, max_size=5), st.integers(0, 60), st.sampled_from([1, 7, 4096]))
def test_no_way_that_is_small_enough_loses_less(
    things: list[list[Option]], budget: int, unit: int
) -> None:
    """Whatever divides all sizes."""
    things = [[Option(o.num_bytes * unit, o.loss) for o in own] for own in things]
    budget *= unit
    ways = itertools.product(*things)
    small = [way for way in ways if sum(o.num_bytes for o in way) <= budget]
    chosen = least_loss(things, budget)
    if chosen is None:
        assert not small
        return
    own = [options[number] for options, number in zip(things, chosen, strict=True)]
    assert sum(o.num_bytes for o in own) <= budget
    assert sum(o.loss for o in own) == min(sum(o.loss for o in way) for way in small)


def test_sizes_that_nothing_divides_stay_within_the_budget_and_nearly_fill_it() -> None:
    things = [[Option(10**9 * b + 13 * i, 2.0**-b) for b in range(1, 6)] for i in range(20)]
    budget = 61 * 10**9 + 2 * 10**7
    chosen = least_loss(things, budget)
    assert chosen is not None
    taken = sum(options[n].num_bytes for options, n in zip(things, chosen, strict=True))
    assert budget * (1 - 2 * len(things) / STEPS) - 10**9 < taken <= budget
    # As many of three bits as there is room for, and one of four.
    assert sorted(chosen) == [2] * 19 + [3]


@pytest.mark.parametrize(
    ("text", "bits", "num_bytes"),
    [
        ("3.5", 3.5, None),
        (" 4 ", 4.0, None),
        ("380MB", None, 380 * 10**6),
        ("1.5GiB", None, 3 << 29),
        ("12 kb", None, 12_000),
    ],
)
def test_budgets(text: str, bits: float | None, num_bytes: int | None) -> None:
    found = Budget.parse(text)
    assert (found.bits, found.num_bytes) == (bits, num_bytes)
    assert str(found) == text


@pytest.mark.parametrize("text", ["", "0", "0MB", "-3", "3.5b", "4 bits", "1e3", "MB", "3,5"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a budget: .*write 3\.5 for bits"):
        Budget.parse(text)


def test_bits_are_of_all_weights_that_can_be_quantized() -> None:
    assert Budget.parse("3.5").of_matrices(1001, 10**9) == math.floor(1001 * 3.5 / 8)
    assert Budget.parse("2MB").of_matrices(1000, 3 * 10**6) == -(10**6)


def test_a_budget_that_holds_the_best_of_everything_is_used() -> None:
    """Though sizes are rounded up, together beyond the budget."""
    things = [[Option(10**9 * b + i * b, 2.0**-b) for b in range(1, 6)] for i in range(20)]
    most = sum(options[-1].num_bytes for options in things)
    assert least_loss(things, most) == [4] * 20

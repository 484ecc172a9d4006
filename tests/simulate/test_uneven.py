"""Steps of one size that differ by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulated import EvenClock, played, setup_of, single

from penstock.simulate.fleet import Offered
from penstock.simulate.uneven import Drawn, Unevenness


def test_what_is_drawn_is_as_uneven_as_what_was_measured() -> None:
    random = np.random.default_rng(5)
    expected = np.concatenate([np.full(400, 1e-3), np.full(400, 5e-2)])
    seconds = expected * np.exp(np.repeat([0.3, 0.02], 400) * random.standard_normal(800))
    uneven = Unevenness.of(expected, seconds)
    assert uneven is not None
    assert len(uneven.factors) == len(uneven.longest) + 1 == 2
    drawn = Drawn(uneven, (1,))
    for one, part in ((1e-3, seconds[:400]), (5e-2, seconds[400:])):
        found = drawn.each([one] * 5000)
        for percent in (10, 50, 90, 99):
            assert np.percentile(found, percent) == pytest.approx(
                np.percentile(part, percent), rel=0.12
            )
        assert np.mean(found) == pytest.approx(np.mean(part), rel=0.03)


def test_few_steps_say_nothing_and_small_classes_join_others() -> None:
    few = np.full(20, 1e-3)
    assert Unevenness.of(few, few) is None
    expected = np.concatenate([few, np.full(300, 4e-3), few * 100])
    uneven = Unevenness.of(expected, expected)
    assert uneven is not None
    assert len(uneven.factors) == 1


def test_the_same_seed_draws_the_same() -> None:
    uneven = Unevenness((), ((0.5, 1.0, 1.5, 2.0),))
    even = setup_of(EvenClock(1.0))
    conversations = [single(number, 30.0 * number, 5, 8) for number in range(40)]

    def seconds(seed: int) -> list[float]:
        fleet = played(replace(even, uneven=uneven), conversations, Offered(None, seed=seed))
        return [each.last_s - each.asked.sent_s for each in fleet.answers]

    assert seconds(1) == seconds(1)
    assert seconds(1) != seconds(2)
    alike = [each.last_s - each.asked.sent_s for each in played(even, conversations).answers]
    assert np.mean(seconds(1)) == pytest.approx(1.25 * np.mean(alike), rel=0.1)

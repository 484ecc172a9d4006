"""Which prefixes are worth reading."""

from __future__ import annotations

from penstock.engine.tiers.rule import ReadingCosts

MB = 1_000_000


def measured(bandwidth: float, rate: float) -> ReadingCosts:
    """Costs of which so many bytes and tokens a second are known."""
    costs = ReadingCosts()
    costs.bandwidths[0].add(bandwidth, 1.0)
    costs.rate.add(rate, 1.0)
    return costs


def test_what_is_not_known_is_tried() -> None:
    costs = ReadingCosts()
    assert costs.worth(32, [100_000 * MB], [0])
    costs.bandwidths[0].add(1, 1.0)
    assert costs.worth(32, [100_000 * MB], [0])
    costs.rate.add(1_000_000, 1.0)
    assert not costs.worth(32, [100_000 * MB], [0])


def test_the_faster_way_is_taken() -> None:
    costs = measured(bandwidth=400 * MB, rate=300)  # 1B on a laptop: 1 MB a block
    assert costs.worth(8192, [256 * MB], [0])
    assert costs.worth(32, [1 * MB], [0])
    # Others are read before.
    assert not costs.worth(32, [1 * MB], [100 * MB])
    # A slow disk under a fast engine.
    assert not measured(bandwidth=50 * MB, rate=50_000).worth(8192, [256 * MB], [0])


def test_patience_is_that_of_computing() -> None:
    costs = measured(bandwidth=400 * MB, rate=1000)
    assert costs.patience_s(2000) == 3.0
    assert costs.patience_s(10) == 0.25

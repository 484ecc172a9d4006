"""The points of E8P and of the smaller codebook, against what they are defined as."""

from __future__ import annotations

import numpy as np

from penstock.quant.lattice import magnitudes, points_of, small_points

EVERY = np.arange(1 << 16, dtype=np.uint16)


def in_e8(doubled: np.ndarray) -> np.ndarray:
    """Whether rows ``[n, 8]`` are twice a point of E8: all even or all odd, with a sum that is
    divisible by 4."""
    alike = (doubled % 2 == doubled[:, :1] % 2).all(axis=1)
    return alike & (doubled.sum(axis=1) % 4 == 0)


def test_there_are_227_short_magnitudes_and_29_longer_ones() -> None:
    squares = np.square(magnitudes()).sum(axis=1)
    assert ((squares <= 10).sum(), (squares == 12).sum()) == (227, 29)
    assert len(np.unique(magnitudes(), axis=0)) == 256
    # None is missing: of halves of odd numbers there are no other vectors up to this length.
    grid = np.stack(np.meshgrid(*[[0.5, 1.5, 2.5, 3.5]] * 8, indexing="ij"), axis=-1).reshape(-1, 8)
    assert (np.square(grid).sum(axis=1) <= 10).sum() == 227


def test_no_component_of_the_longer_ones_is_preferred() -> None:
    longer = magnitudes()[np.square(magnitudes()).sum(axis=1) == 12]
    halves = (longer == 0.5).sum(axis=0)
    assert halves.min() >= 10
    assert halves.max() <= 12


def test_every_code_is_another_point_of_the_lattice_moved_by_a_quarter() -> None:
    points = points_of(EVERY)
    assert len(np.unique(points, axis=0)) == 1 << 16
    moved = np.where(EVERY >> 15, -0.25, 0.25)[:, None]
    doubled = 2 * (points - moved)
    assert np.array_equal(doubled, np.rint(doubled))
    assert (doubled % 2 == 1).all()
    assert in_e8(doubled).all()
    assert np.array_equal(np.abs(points - moved), magnitudes()[EVERY & 255])
    assert np.abs(points).max() == 2.75


def test_bits_of_a_code_are_where_they_are_said_to_be() -> None:
    first = magnitudes()[0]
    assert np.array_equal(points_of(np.array([0], np.uint16))[0], first + 0.25)
    assert np.array_equal(points_of(np.array([1 << 15], np.uint16))[0], first - 0.25)
    signs = np.array([1, 1, -1, 1, 1, 1, 1, -1])  # the eighth by parity
    assert np.array_equal(points_of(np.array([1 << 10], np.uint16))[0], signs * first + 0.25)


def test_the_smaller_codebook_has_the_shortest_points_of_the_lattice() -> None:
    points = small_points()
    lengths, counts = np.unique(np.square(points).sum(axis=1), return_counts=True)
    assert (lengths.tolist(), counts.tolist()) == ([0, 2, 4], [1, 240, 15])
    assert len(np.unique(points, axis=0)) == 256
    assert in_e8(2 * points).all()

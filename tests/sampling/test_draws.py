"""The counter-based draws: known vectors, independence of streams, uniformity."""

from __future__ import annotations

import numpy as np

from penstock.sampling.draws import below, draw64, mix64, sequence_key

GAMMA = 0x9E3779B97F4A7C15


def test_mix64_is_the_output_function_of_splitmix64() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, as published with the generator.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [mix64(1234567 + (i + 1) * GAMMA) for i in range(5)] == expected


def test_keys_and_draws_do_not_collide() -> None:
    keys = {sequence_key(seed, index) for seed in range(-20, 200) for index in range(16)}
    assert len(keys) == 220 * 16
    key = sequence_key(0, 0)
    draws = {draw64(key, position, stream) for position in range(500) for stream in range(4)}
    assert len(draws) == 2000


def test_seed_is_taken_modulo_two_to_the_64() -> None:
    assert sequence_key(-1, 0) == sequence_key(2**64 - 1, 0)


def test_draws_of_one_sequence_and_across_seeds_are_uniform() -> None:
    for draws in (
        [draw64(sequence_key(7, 0), position) for position in range(20000)],
        [draw64(sequence_key(seed, 0), 0) for seed in range(20000)],
        [draw64(sequence_key(3, index), 5) for index in range(20000)],
    ):
        counts = np.bincount([below(50, bits) for bits in draws], minlength=50)
        chi_square = float(((counts - 400) ** 2 / 400).sum())
        assert chi_square < 100  # 49 degrees of freedom: exceeded once in 10**5


def test_below_covers_its_range() -> None:
    assert below(10, 0) == 0
    assert below(10, 2**64 - 1) == 9
    assert below(1, 2**64 - 1) == 0

"""The search: never worse than the default, the same for equal seeds, and what Ctrl-C leaves."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from penstock.bench.progress import Stopped
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.profile import Figure, Served
from penstock.tune.choice import Finalist, choose
from penstock.tune.load import parts
from penstock.tune.search import Search, Simulate
from penstock.tune.space import Candidate, Dimension, Space

DEFAULT = Candidate(EngineConfig(), 1024)
SPACE = Space(
    DEFAULT,
    (
        Dimension("max_num_seqs", (2, 4, 8, 16, None, 64)),
        Dimension("max_num_batched_tokens", (64, 128, None, 1024)),
        Dimension("max_waiting", (0, 8, 1024)),
    ),
)


def served(goodput: float, tokens: float = 100.0) -> Served:
    nothing = Figure(mean=0.0)
    return Served(
        goodput_per_s=Figure(mean=goodput),
        good_share=nothing,
        failed_share=nothing,
        output_tokens_per_s=Figure(mean=tokens),
        ttft_p99=None,
        tpot_p99=None,
        e2el_p99=None,
    )


def drawn(seed: int) -> Simulate:
    """Any goodput for each candidate, a little another one on each part of the load."""

    def simulate(candidate: Candidate, conversations: int) -> Served:
        places = [each.values.index(candidate.get(each.option)) for each in SPACE.dimensions]
        of = np.random.default_rng([seed, *places])
        return served(of.uniform(0, 10) + np.random.default_rng([conversations, *places]).uniform())

    return simulate


def search(simulate: Simulate, seed: int = 0, candidates: int = 20) -> Search:
    return Search(SPACE, simulate, "goodput", 900, seed, candidates)


@pytest.mark.parametrize("seed", range(25))
def test_never_worse_than_the_default_and_always_the_same(seed: int) -> None:
    simulate = drawn(seed)
    found = search(simulate, seed).run()
    assert found.ranked[0].key <= found.default.key
    assert found.default.candidate == DEFAULT
    assert found.default.served == simulate(DEFAULT, 900)
    assert list(found.ranked) == sorted(found.ranked, key=lambda each: each.key)
    assert found == search(simulate, seed).run()
    assert found.tried < SPACE.size


def test_a_hill_is_climbed() -> None:
    """One best value of each option: found, though few candidates begin."""

    def simulate(candidate: Candidate, conversations: int) -> Served:
        wanted = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_waiting": 8}
        away = sum(
            abs(of.values.index(candidate.get(of.option)) - of.values.index(wanted[of.option]))
            for of in SPACE.dimensions
        )
        return served(10.0 - away)

    best = search(simulate, candidates=1).run().ranked[0].candidate
    assert SPACE.named(best) == "max_num_seqs=4,max_num_batched_tokens=64,max_waiting=8"


def test_of_equals_the_one_with_fewer_changes() -> None:
    found = search(lambda candidate, conversations: served(1.0)).run()
    assert found.ranked[0].candidate == DEFAULT
    by_tokens = search(
        lambda candidate, conversations: served(1.0, 200.0 if candidate.max_waiting == 0 else 100.0)
    ).run()
    assert SPACE.named(by_tokens.ranked[0].candidate) == "max_waiting=0"


def test_what_cannot_run_is_left_out() -> None:
    def simulate(candidate: Candidate, conversations: int) -> Served:
        if candidate.engine.max_num_seqs == 2:
            raise ConfigError("two are too few")
        return drawn(1)(candidate, conversations)

    found = search(simulate).run()
    assert all(each.candidate.engine.max_num_seqs != 2 for each in found.ranked)
    assert found.refused["max_num_seqs=2"] == "two are too few"

    def nothing(candidate: Candidate, conversations: int) -> Served:
        raise ConfigError("no memory")

    with pytest.raises(ConfigError, match="no memory"):
        search(nothing).run()


@pytest.mark.parametrize("after", [0, 1, 5, 20, 26, 30, 40])
def test_stopped(after: int) -> None:
    """What is known of the longest part that was done is kept."""
    found = search(stopping(drawn(3), after))
    if after == 0:
        with pytest.raises(Stopped):
            found.run()
        return
    kept = found.run()
    assert kept.partial
    assert kept.ranked[0].key <= kept.default.key
    assert kept.default.candidate == DEFAULT


def stopping(simulate: Simulate, after: int) -> Simulate:
    left = [after]

    def stopped(candidate: Candidate, conversations: int) -> Served:
        if left[0] == 0:
            raise Stopped
        left[0] -= 1
        return simulate(candidate, conversations)

    return stopped


def test_parts_grow() -> None:
    assert parts(900, (1 / 9, 1 / 3)) == [100, 300, 900]
    assert parts(30, (1 / 9, 1 / 3)) == [20, 30]
    assert parts(5, (1 / 9, 1 / 3)) == [5]


def finalist(name: str, predicted: float, measured: Figure | None) -> Finalist:
    made = None
    if measured is not None:
        made = msgspec.structs.replace(served(0.0), goodput_per_s=measured)
    return Finalist(DEFAULT, name, served(predicted), made)


def test_what_was_measured_decides() -> None:
    def of(mean: float, half: float) -> Figure:
        return Figure(mean=mean, low=mean - half, high=mean + half)

    default = finalist("default", 1.0, of(2.0, 0.1))
    made = choose(
        [default, finalist("a", 9.0, of(1.0, 0.1)), finalist("b", 3.0, of(3.0, 0.1))], "goodput"
    )
    assert (made.chosen.name, made.verified, made.gain, made.notes) == ("b", True, 1.5, ())
    made = choose([default, finalist("a", 9.0, of(2.1, 0.1))], "goodput")
    assert "the gain may be chance" in made.notes[0]
    made = choose([default, finalist("a", 9.0, of(1.0, 0.1))], "goodput")
    assert (made.chosen, made.notes) == (default, ("nothing was better than the default",))
    made = choose([default, finalist("a", 9.0, None)], "goodput")
    assert (made.chosen.name, made.verified, made.gain) == ("a", False, 9.0)


def test_a_guess_is_chosen_if_it_was_measured_alone() -> None:
    """Simulations that went beyond the calibration say little."""

    def guess(measured: Figure | None) -> Finalist:
        return replace(finalist("guess", 9.0, measured), guessed=("steps of 1,024 tokens",))

    default, sound = finalist("default", 1.0, None), finalist("sound", 2.0, None)
    made = choose([default, guess(None), sound], "goodput")
    assert made.chosen is sound
    assert made.notes[0].startswith("guess is predicted to be better, by a guess beyond")
    assert choose([default, guess(None)], "goodput").chosen is default
    assert choose([replace(default, guessed=("contexts",)), sound], "goodput").chosen is sound
    measured = [finalist("default", 1.0, Figure(mean=1.0)), guess(Figure(mean=2.0))]
    assert choose(measured, "goodput").chosen is measured[1]

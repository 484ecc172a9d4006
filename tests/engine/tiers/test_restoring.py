"""Whatever stores answer, and whenever, sequences are let in within their patience, and nothing is
left in the books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.restored import Answer, Engine, small_pieces

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.tiers.restoring import Restoring
from penstock.scheduler.sequence import SequenceState, Status

ROUND_S = 0.1
MOST_BLOCKS = 12
MOST_OUTPUT = 64


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_pieces():
        yield


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Whole blocks of one of a few trees of prompts, and a token behind them."""
    tree = draw(st.integers(0, 1))
    trunk = draw(st.sampled_from([0, 3, 6, 9, MOST_BLOCKS]))
    own = draw(st.integers(0, 2))
    branch = draw(st.integers(0, 1))
    tokens = [100 * tree + i for i in range(trunk) for _ in range(BLOCK_SIZE)]
    return [*tokens, *([1000 + branch] * own * BLOCK_SIZE), 7]


answers = st.lists(
    st.tuples(
        st.sampled_from(["whole", "whole", "whole", "short", "damaged", "never"]),
        st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=6,
)
arrivals = st.tuples(
    st.just("add"), prompts(), st.integers(-1, 1), st.sampled_from([1, 5, MOST_OUTPUT])
)
events = st.lists(
    st.one_of(
        st.lists(arrivals, min_size=1, max_size=5),
        st.lists(arrivals, min_size=1, max_size=5),
        st.lists(st.tuples(st.just("abort"), st.integers(0, 20)), min_size=1, max_size=2),
        st.lists(st.just(("step",)), min_size=1, max_size=6),
        st.just([("reset",)]),
    ),
    min_size=8,
    max_size=20,
).map(lambda parts: [event for part in parts for event in part])


def script(some: list[tuple[Answer, float]]) -> Callable[[], tuple[Answer, float]]:
    """These answers, over and over."""
    at = iter(range(1_000_000))
    return lambda: some[next(at) % len(some)]


@settings(max_examples=150, deadline=None)
@given(
    events=events,
    stores=st.lists(answers, min_size=1, max_size=2),
    windows=st.sampled_from([(None,), (None, 40), (40, None)]),
    room=st.integers(1, 40),
    seqs=st.integers(1, 4),
    token_s=st.sampled_from([1e-3, 1e-2]),
    seed=st.integers(0, 9),
)
def test_everybody_is_let_in_and_nothing_stays(
    events: list[tuple[object, ...]],
    stores: list[list[tuple[Answer, float]]],
    windows: tuple[int | None, ...],
    room: int,
    seqs: int,
    token_s: float,
    seed: int,
) -> None:
    num_blocks = len(windows) * (MOST_BLOCKS + 2 + MOST_OUTPUT // BLOCK_SIZE) + room
    engine = Engine([script(each) for each in stores], num_blocks, seqs, windows, token_s)
    random = Random(seed)
    for tree in range(2):
        for branch in range(2):
            for trunk in range(MOST_BLOCKS + 1):
                tokens = [100 * tree + i for i in range(trunk) for _ in range(BLOCK_SIZE)]
                tokens += [1000 + branch] * 2 * BLOCK_SIZE
                engine.hold(random.randrange(len(stores)), tokens)
    aside = Aside(engine)
    for event in events:
        match event:
            case ("add", list(tokens), int(priority), int(output)):
                engine.add(tokens, priority, output)
            case ("abort", number):
                engine.scheduler.abort(str(number))
            case ("step",):
                aside.step()
            case ("reset",):
                engine.restoring.reset()
                engine.cache.reset()
    rounds = 0
    while any(each.status is not Status.FINISHED for each in engine.sequences):
        aside.step()
        rounds += 1
        assert rounds < 5000, "a sequence never ends"
    engine.clock.now += 1e6
    aside.step()
    assert_nothing_is_left(engine)


class Aside:
    """Steps an engine, and looks at how long sequences are aside, in all."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rounds: Counter[tuple[SequenceState, int]] = Counter()
        """Number of rounds that each sequence was aside since it was preempted last."""
        self._times: Counter[tuple[SequenceState, int]] = Counter()
        """How often it came to be aside."""
        self._aside: set[SequenceState] = set()

    def step(self) -> None:
        engine = self._engine
        engine.step(ROUND_S)
        before, self._aside = self._aside, set()
        for sequence in engine.sequences:
            if sequence.status is not Status.PENDING:
                continue
            self._aside.add(sequence)
            which = sequence, sequence.num_preemptions
            self._rounds[which] += 1
            self._times[which] += sequence not in before
            patience = engine.costs.patience_s(len(sequence.token_ids))
            # Each look is the end of a round, and what it brings is seen in the next.
            looks = self._times[which] + (engine.restoring._looks._losses.get(sequence) or 0)
            most = patience / ROUND_S + 2 * looks
            assert self._rounds[which] <= most, "it waits for longer than is worth it"


def assert_nothing_is_left(engine: Engine) -> None:
    restoring: Restoring = engine.restoring
    assert not restoring.has_work
    assert restoring.num_aside == 0
    assert not restoring._fetches
    assert not restoring._by_number
    assert len(restoring._coming) == 0
    assert not restoring._coming._by_fetch
    assert not restoring._intake._landing
    assert all(store.lent == 0 for store in engine.stores)

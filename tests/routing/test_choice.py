"""Choices, and the books they rest on, against a model that looks at each replica by itself."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import ConfigError
from penstock.routing import known
from penstock.routing.levels import LoadLevels
from penstock.routing.loads import LoadWeights
from penstock.routing.native import NativeLevels, native
from penstock.routing.policies import POLICIES, Turns, nth
from penstock.routing.query import KEY_BYTES, Chain, Key, Query, bits, split_keys
from penstock.routing.router import Router, Sent
from penstock.routing.tables import MakeTables, best_tables, plain_tables

BLOCK = 10
WEIGHTS = LoadWeights(decode_tokens=25, grain=4, given_grain=20, uncached=3 / 2, lost=1 / 2)


def key_of(*name: object) -> Key:
    return blake2b(repr(name).encode(), digest_size=KEY_BYTES).digest()


def chain(prompt: Iterable[object]) -> list[Key]:
    """Keys that are equal where beginnings are."""
    names = list(prompt)
    return [key_of(*names[: i + 1]) for i in range(len(names))]


def query(prompt: list[int], session: str | None = None) -> Query:
    return Query((Chain(b"".join(chain(prompt)), BLOCK),), BLOCK * len(prompt) + 3, session)


def named(names: Iterable[object], block: int, tokens: int) -> Query:
    """A query of a chain whose keys have names."""
    return Query((Chain(b"".join(map(key_of, names)), block),), tokens)


PROMPTS = st.lists(st.integers(0, 2), max_size=6)
NATIVE = pytest.mark.skipif(native is None, reason="the native tables are not built")
BOTH = pytest.mark.parametrize(
    "make_tables", [plain_tables, pytest.param(best_tables, marks=NATIVE)], ids=["plain", "native"]
)


@BOTH
@given(
    held=st.dictionaries(st.integers(0, 90), st.sets(PROMPTS.map(tuple), max_size=9), max_size=12),
    prompt=PROMPTS,
    among=st.integers(0, 2**91 - 1) | st.integers(0, 4095),
)
def test_prefixes_are_those_that_each_replica_holds(
    make_tables: MakeTables, held: dict[int, set[tuple[int, ...]]], prompt: list[int], among: int
) -> None:
    tables = make_tables(WEIGHTS)
    for replica, names in held.items():
        tables.reported(replica).replace(b"".join(key_of(*name) for name in names))
    held_keys = {replica: {key_of(*name) for name in names} for replica, names in held.items()}
    keys = chain(prompt)
    expected: dict[int, int] = {}
    for replica in bits(among):
        blocks = 0
        while blocks < len(keys) and keys[blocks] in held_keys.get(replica, ()):
            blocks += 1
        expected[blocks] = expected.get(blocks, 0) | 1 << replica
    found = tables.index.prefixes(Chain(b"".join(keys), 1), among)
    assert found == sorted(expected.items(), reverse=True)


@pytest.mark.parametrize(
    "make_levels", [LoadLevels, pytest.param(native and native.LoadLevels, marks=NATIVE)]
)
@given(
    puts=st.lists(st.tuples(st.integers(0, 130), st.integers(-1, 9)), max_size=80),
    among=st.integers(1, 2**131 - 1),
)
def test_levels_know_the_least_of_any_set(
    make_levels: Callable[[], NativeLevels], puts: list[tuple[int, int]], among: int
) -> None:
    levels, naive = make_levels(), dict.fromkeys(range(131), 0)
    for replica in naive:
        levels.put(replica, 0)
    for replica, level in puts:
        if level < 0:
            if replica in naive:
                levels.drop(replica)
                del naive[replica]
        else:
            levels.put(replica, level)
            naive[replica] = level
    assert {replica: levels.level(replica) for replica in naive} == naive
    assert (levels.lowest, levels.highest) == (min(naive.values()), max(naive.values()))
    there = [replica for replica in bits(among) if replica in naive]
    known = sum(1 << replica for replica in there)
    if there:
        least = min(naive[replica] for replica in there)
        equal = sum(1 << replica for replica in there if naive[replica] == least)
        assert levels.least(known) == (least, equal)


@given(st.sets(st.integers(0, 200), min_size=1), st.data())
def test_the_nth_of_a_set(members: set[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(members) - 1))
    assert nth(sum(1 << each for each in members), place) == sorted(members)[place]


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), max_size=20))
def test_turns_go_round(sets: list[set[int]]) -> None:
    turns, last = Turns(), -1
    for members in sets:
        found = turns.first(sum(1 << each for each in members))
        behind = [each for each in members if each > last]
        assert found == min(behind or members)
        last = found


@BOTH
@given(prompts=st.lists(PROMPTS, max_size=40), capacity=st.integers(1, 8))
def test_what_is_assumed_is_what_was_sent_last(
    make_tables: MakeTables, prompts: list[list[int]], capacity: int
) -> None:
    tables = make_tables(WEIGHTS)
    index, book = tables.index, tables.assumed(3, capacity)
    used: OrderedDict[Key, None] = OrderedDict()
    for prompt in prompts:
        book.begin(query(prompt).chains[0])
        for key in reversed(chain(prompt)[:capacity]):
            used.pop(key, None)
            used[key] = None
        while len(used) > capacity:
            used.popitem(last=False)
        assert book.held == index.held.level(3) == len(used)
        assert set(split_keys(book.keys())) == set(used)
        assert all(index.holders(key) == 8 for key in used)
        assert len(index) == len(used)
    book.clear()
    assert len(index) == 0


class Books(RuleBasedStateMachine):
    """A router of four replicas that report, and a fifth that does not, beside a naive one."""

    make_tables = staticmethod(plain_tables)

    def __init__(self) -> None:
        super().__init__()
        self.router = Router("cost", WEIGHTS, make_tables=self.make_tables)
        for _ in range(4):
            self.router.join()
        self.router.join(assumed=5)
        self.reported: list[set[Key]] = [set() for _ in range(4)]
        self.sent: list[tuple[int, list[int]]] = []
        self.open: list[tuple[Sent, int, list[int], int, str]] = []
        self.sessions: dict[str, int] = {}
        self.full: set[int] = set()
        self.given = [0] * 5

    def holds(self, replica: int, key: Key) -> bool:
        if replica == 4:
            used: OrderedDict[Key, None] = OrderedDict()
            for number, prompt in self.sent:
                for each in reversed(chain(prompt)[:5]) if number == 4 else ():
                    used.pop(each, None)
                    used[each] = None
            return key in list(used)[-5:]
        expected = any(key in chain(p) for _, number, p, _, _ in self.open if number == replica)
        return expected or key in self.reported[replica]

    def cached(self, replica: int, prompt: list[int]) -> int:
        blocks = 0
        for key in chain(prompt):
            if not self.holds(replica, key):
                break
            blocks += 1
        return blocks * BLOCK

    def work(self, replica: int) -> int:
        tokens = 0
        for _, number, _, uncached, phase in self.open:
            if number == replica:
                tokens += uncached if phase == "prefill" else WEIGHTS.decode_tokens
        return tokens // WEIGHTS.grain

    @rule(prompt=PROMPTS, among=st.integers(1, 31), session=st.sampled_from([None, "a", "b"]))
    def ask(self, prompt: list[int], among: int, session: str | None) -> None:
        asked = query(prompt, session)
        costs = {}
        for replica in bits(among):
            uncached = asked.tokens - self.cached(replica, prompt)
            costs[replica] = self.work(replica)
            costs[replica] += math.ceil(uncached * WEIGHTS.uncached / WEIGHTS.grain)
            if replica in self.full:
                costs[replica] += int(uncached * WEIGHTS.lost) // WEIGHTS.grain
        equal = [replica for replica, cost in costs.items() if cost == min(costs.values())]
        choice = self.router.choose(asked, among)
        assert choice.replica in equal
        last = self.sessions.get(session) if session is not None else None
        if last in equal:
            assert choice.replica == last
        else:
            longest = max(self.cached(replica, prompt) for replica in equal)
            best = [replica for replica in equal if self.cached(replica, prompt) == longest]
            # Of those in one entry of overlaps the full and the others are looked at apart.
            assert self.cached(choice.replica, prompt) == longest
            alike = [r for r in best if (r in self.full) == (choice.replica in self.full)]
            assert self.given[choice.replica] // 20 == min(self.given[r] // 20 for r in alike)
        if session is not None:
            self.sessions[session] = choice.replica
        assert choice.cached == self.cached(choice.replica, prompt)
        sent = self.router.begin(asked, choice)
        uncached = max(asked.tokens - choice.cached, 1)
        self.given[choice.replica] += uncached
        self.sent.append((choice.replica, prompt))
        if len({key for number, each in self.sent if number == 4 for key in chain(each)[:5]}) > 5:
            self.full.add(4)
        self.open.append((sent, choice.replica, prompt, uncached, "prefill"))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.open) - 1))
        sent, number, prompt, uncached, _ = self.open[place]
        self.router.prefilled(sent)
        self.open[place] = (sent, number, prompt, uncached, "decode")

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sent, *_ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.router.end(sent)
        self.router.end(sent)  # once counts

    @rule(replica=st.integers(0, 3), prompt=PROMPTS, gone=PROMPTS)
    def report(self, replica: int, prompt: list[int], gone: list[int]) -> None:
        added = set(chain(prompt))
        removed = (set(chain(gone)) & self.reported[replica]) - added
        self.router.reported(replica).change(b"".join(added), b"".join(removed))
        if removed:
            self.full.add(replica)
        self.reported[replica] |= added
        self.reported[replica] -= removed

    @rule(replica=st.integers(0, 3), prompt=PROMPTS)
    def report_all(self, replica: int, prompt: list[int]) -> None:
        self.router.reported(replica).replace(b"".join(chain(prompt)))
        self.full.discard(replica)
        self.reported[replica] = set(chain(prompt))

    @invariant()
    def loads_agree(self) -> None:
        for replica in range(5):
            assert self.router.loads.work.level(replica) == self.work(replica)
            open_there = sum(number == replica for _, number, *_ in self.open)
            assert self.router.loads.requests.level(replica) == open_there


class NativeBooks(Books):
    make_tables = staticmethod(best_tables)


TestBooks = Books.TestCase
TestNativeBooks = NATIVE(NativeBooks.TestCase)
for case in (TestBooks, TestNativeBooks):
    case.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_chooses_among_those_it_may(policy: str) -> None:
    router = Router(policy, WEIGHTS, seed=3)
    for _ in range(20):
        router.join()
    for number in range(200):
        among = 0b10110 << number % 7
        choice = router.choose(query([number % 3, number % 5]), among)
        assert among >> choice.replica & 1
        sent = router.begin(query([number % 3, number % 5]), choice)
        if number % 3:
            router.end(sent)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_requests_are_routed_the_same_again(policy: str) -> None:
    def run() -> list[int]:
        router = Router(policy, WEIGHTS, seed=3)
        for _ in range(9):
            router.join(assumed=8)
        chosen = []
        for number in range(100):
            asked = query([number % 2, number % 3, number % 5])
            choice = router.choose(asked, router.replicas)
            router.begin(asked, choice)
            chosen.append(choice.replica)
        return chosen

    assert run() == run()


def test_an_idle_fleet_is_filled_although_all_prompts_begin_alike() -> None:
    router = Router("cost", LoadWeights())
    for _ in range(8):
        router.join(assumed=80)
    chosen = []
    for number in range(64):
        asked = named([0, *((number, i) for i in range(40))], 32, 41 * 32)
        choice = router.choose(asked, router.replicas)
        router.end(router.begin(asked, choice))
        chosen.append(choice.replica)
    assert set(chosen[:24]) == set(range(8))
    assert {chosen[24:].count(replica) for replica in range(8)} == {5}


def test_a_loaded_replica_is_left_for_one_that_must_compute_the_prompt() -> None:
    router = Router("cost", LoadWeights())
    for _ in range(2):
        router.join(assumed=1000)
    asked = named(range(100), 32, 3200)
    first = router.begin(asked, router.choose(asked, 3))
    assert first.replica == 0
    # Where it runs, 3,200 tokens are left to compute; elsewhere 960, each of which counts three.
    other = named(range(30), 32, 960)
    assert router.choose(other, 3).replica == 1
    longer = named(range(50), 32, 1600)
    assert router.choose(longer, 3) == (0, 1600)
    router.prefilled(first)
    assert router.choose(other, 3) == (0, 960)


def test_who_was_away_has_nothing_to_make_up_for() -> None:
    router = Router("cost", WEIGHTS)
    for _ in range(3):
        router.join()
    for number in range(30):
        asked = query([number])
        router.end(router.begin(asked, router.choose(asked, 0b011)))
    router.loads.catch_up(2, 0b011)
    chosen = []
    for number in range(9):
        asked = query([100 + number])
        choice = router.choose(asked, 0b111)
        router.end(router.begin(asked, choice))
        chosen.append(choice.replica)
    assert 2 <= chosen.count(2) <= 4
    assert router.join() == 3
    assert abs(router.loads.given.level(3) - router.loads.given.level(0)) <= 1


def test_thresholds() -> None:
    router = Router("threshold")
    for _ in range(3):
        router.join(assumed=1000)
    first = named([("a", i) for i in range(10)], 10, 100)
    assert router.choose(first, 7) == (0, 0)
    router.end(router.begin(first, router.choose(first, 7)))
    # The others hold less; what is like a third of the first goes to it all the same.
    assert router.choose(named([("b", 0)], 10, 10), 7) == (1, 0)
    alike = [("a", i) for i in range(4)]
    assert router.choose(named(alike, 10, 129), 7) == (0, 40)
    assert router.choose(named(alike, 10, 134), 7) == (1, 0)
    opened = [router.begin(first, router.choose(first, 7)) for _ in range(65)]
    assert {sent.replica for sent in opened} == {0}
    assert router.choose(first, 7) == (1, 0)  # 65 are open there, and none elsewhere
    router.end(opened.pop())
    assert router.choose(first, 7) == (0, 100)


def test_a_replica_that_left_is_known_no_more() -> None:
    router = Router("cost", WEIGHTS)
    assert [router.join(), router.join()] == [0, 1]
    asked = query([1, 2])
    sent = router.begin(asked, router.choose(asked, 1))
    router.leave(0)
    assert router.replicas == 0b10
    assert router.join(assumed=4) == 0
    router.prefilled(sent)
    router.end(sent)  # of the one that left
    assert router.loads.requests.level(0) == 0
    assert len(router.index) == 0


def test_a_policy_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="routing is one of cost, round-robin"):
        Router("best")


def test_a_session_that_stays_where_it_is_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "_SESSIONS", 2)
    router = Router("cost", WEIGHTS)
    for _ in range(3):
        router.join()

    def routed(session: str | None) -> int:
        asked = query([])
        choice = router.choose(asked if session is None else query([], session), 0b111)
        return choice.replica

    first = routed("a")
    routed("b")
    assert routed("a") == first  # it is used later than b now
    routed("c")
    routed(None)
    assert routed("a") == first

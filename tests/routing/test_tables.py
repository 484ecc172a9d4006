"""Native tables against those that are written in Python: the same calls, and what they tell."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.routing.loads import LoadWeights
from penstock.routing.native import native
from penstock.routing.policies import POLICIES, Choice
from penstock.routing.query import KEY_BYTES, Chain, Key, Query, bits, split_keys
from penstock.routing.router import Router, Sent
from penstock.routing.tables import best_tables, plain_tables

pytestmark = pytest.mark.skipif(native is None, reason="the native tables are not built")

BLOCK, TEXT_BLOCK = 16, 7
REPLICAS = 70
"""More than a word of a set has bits, and more than have a place each in an entry's first array."""
CROWDED = 40
"""Replicas that hold the beginning of all prompts from the start."""


def chain(prompt: list[int], block: int) -> Chain:
    keys, running = [], blake2b(digest_size=KEY_BYTES, person=b"%d" % block)
    for token in prompt:
        running.update(b"%d," % token)
        keys.append(running.copy().digest())
    return Chain(b"".join(keys), block)


PROMPTS = st.lists(st.integers(0, 2), max_size=6).map(lambda prompt: [0, 0, *prompt])
ALL_KEYS: dict[Key, None] = {}


def query(prompt: list[int], session: str | None) -> Query:
    chains = (chain(prompt, BLOCK), chain(prompt, TEXT_BLOCK))
    for each in chains:
        ALL_KEYS.update(dict.fromkeys(each.names))
    return Query(chains, chains[0].tokens + 5, session)


class Alike(RuleBasedStateMachine):
    """Two routers that are told the same, of replicas of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[Sent, Sent]] = []
        self.reporting: set[int] = set()

    @initialize(
        policy=st.sampled_from(list(POLICIES)),
        uncached=st.sampled_from([0.3, 1, 3.0]),
        lost=st.sampled_from([0, 0.25, 2.5]),
        grains=st.tuples(st.sampled_from([1, 3, 64]), st.sampled_from([1, 50])),
        assumed=st.sets(st.integers(0, REPLICAS - 1)),
    )
    def begin(
        self,
        policy: str,
        uncached: float,
        lost: float,
        grains: tuple[int, int],
        assumed: set[int],
    ) -> None:
        weights = LoadWeights(11, *grains, uncached, lost)
        self.plain = Router(policy, weights, seed=5, make_tables=plain_tables)
        self.native = Router(policy, weights, seed=5, make_tables=best_tables)
        self.routers = (self.plain, self.native)
        for number in range(REPLICAS):
            self.join(9 if number in assumed else None)
        for number in sorted(self.reporting)[:CROWDED]:
            self.change(number, [0, 0], [])

    def join(self, assumed: int | None) -> None:
        numbers = {
            router.join(assumed, chain=0 if assumed is None else 1) for router in self.routers
        }
        (number,) = numbers
        if assumed is None:
            self.reporting.add(number)

    def change(self, number: int, added: list[int], removed: list[int]) -> None:
        new, gone = query(added, None).chains[0].names, query(removed, None).chains[0].names
        gone = [key for key in gone if key not in new]
        for router in self.routers:
            router.reported(number).change(b"".join(new), b"".join(gone))

    @rule(
        prompt=PROMPTS,
        among=st.integers(1, 2**REPLICAS - 1) | st.just(2**REPLICAS - 1),
        session=st.sampled_from([None, None, "a", "b"]),
        count=st.integers(1, 3),
    )
    def ask(self, prompt: list[int], among: int, session: str | None, count: int) -> None:
        among &= self.plain.replicas
        if not among:
            return
        for _ in range(count):
            asked = query(prompt, session)
            choices = [router.choose(asked, among) for router in self.routers]
            assert choices[0] == choices[1]
            sent = [router.begin(asked, choices[0]) for router in self.routers]
            self.open.append((sent[0], sent[1]))

    @rule(prompt=PROMPTS, number=st.integers(0, REPLICAS - 1))
    def send(self, prompt: list[int], number: int) -> None:
        if self.plain.replicas >> number & 1:
            asked = query(prompt, None)
            sent = [router.begin(asked, Choice(number, 0)) for router in self.routers]
            self.open.append((sent[0], sent[1]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), both=st.booleans())
    def go_on(self, data: st.DataObject, both: bool) -> None:
        place = data.draw(st.integers(0, len(self.open) - 1))
        pair = self.open[place]
        for router, sent in zip(self.routers, pair, strict=True):
            router.prefilled(sent)
            if both:
                router.end(sent)
        if both:
            self.open.pop(place)

    @precondition(lambda self: self.reporting)
    @rule(data=st.data(), added=PROMPTS, removed=PROMPTS)
    def report(self, data: st.DataObject, added: list[int], removed: list[int]) -> None:
        self.change(data.draw(st.sampled_from(sorted(self.reporting))), added, removed)

    @precondition(lambda self: self.reporting)
    @rule(data=st.data(), prompts=st.lists(PROMPTS, max_size=4))
    def report_all(self, data: st.DataObject, prompts: list[list[int]]) -> None:
        number = data.draw(st.sampled_from(sorted(self.reporting)))
        held = b"".join(query(prompt, None).chains[0].keys for prompt in prompts)
        for router in self.routers:
            router.reported(number).replace(held)

    @rule(number=st.integers(0, REPLICAS - 1))
    def forget(self, number: int) -> None:
        if self.plain.replicas >> number & 1:
            for router in self.routers:
                router.forget(number)

    @rule(number=st.integers(0, REPLICAS - 1), assumed=st.sampled_from([None, None, 1, 7]))
    def start_anew(self, number: int, assumed: int | None) -> None:
        if self.plain.replicas >> number & 1:
            for router in self.routers:
                router.leave(number)
            self.reporting.discard(number)
        self.join(assumed)

    @rule(number=st.integers(0, REPLICAS - 1), others=st.integers(0, 2**REPLICAS - 1))
    def catch_up(self, number: int, others: int) -> None:
        if self.plain.replicas >> number & 1:
            for router in self.routers:
                router.loads.catch_up(number, others & router.replicas)

    @invariant()
    def tell_the_same(self) -> None:
        if not hasattr(self, "routers"):
            return
        plain, other = self.plain, self.native
        assert plain.replicas == other.replicas
        assert plain.index.full == other.index.full
        assert len(plain.index) == len(other.index)
        for key in ALL_KEYS:
            assert plain.index.holders(key) == other.index.holders(key)
        for number in bits(plain.replicas):
            for levels in ("work", "given", "requests"):
                mine = getattr(plain.loads, levels).level(number)
                assert mine == getattr(other.loads, levels).level(number)
            assert plain.loads.prefill(number) == other.loads.prefill(number)
            assert plain.loads.decoding(number) == other.loads.decoding(number)
            assert plain.index.held.level(number) == other.index.held.level(number)
        for number in self.reporting:
            mine = plain.reported(number).keys()
            assert set(split_keys(mine)) == set(split_keys(other.reported(number).keys()))


TestAlike = Alike.TestCase
TestAlike.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(1, 200)), max_size=60))
@settings(max_examples=40, deadline=None)
def test_the_table_of_keys_grows_and_what_went_is_found_no_more(
    changes: list[tuple[bool, int, int]],
) -> None:
    tables = best_tables(LoadWeights())
    book, held = tables.reported(0), set[Key]()
    for comes, first, count in changes:
        # Not hashed: neighbours differ in few bits.
        some = [number.to_bytes(KEY_BYTES, "big") for number in range(first, first + count)]
        if comes:
            book.change(b"".join(some), b"")
            held.update(some)
        else:
            book.change(b"", b"".join(some))
            held.difference_update(some)
        assert len(tables.index) == book.held == len(held)
        assert set(split_keys(book.keys())) == held
    for number in range(0, 5200, 7):
        key = number.to_bytes(KEY_BYTES, "big")
        assert tables.index.holders(key) == (key in held)


def test_what_native_tables_refuse() -> None:
    assert native is not None
    tables = best_tables(LoadWeights())
    book = tables.reported(3)
    for keys in (b"short", b"x" * 24):
        with pytest.raises(ValueError, match="16 bytes each"):
            book.change(keys, b"")
        with pytest.raises(ValueError, match="16 bytes each"):
            book.begin(Chain(keys, 8))
    with pytest.raises(ValueError, match="a key has 16 bytes"):
        tables.index.holders(b"")
    with pytest.raises(ValueError, match="replica 3 has a book"):
        tables.assumed(3, 10)
    with pytest.raises(ValueError, match="at most 65535 replicas"):
        tables.reported(65535)
    with pytest.raises(KeyError, match="no replica 9"):
        tables.loads.begin(9, 1)
    with pytest.raises(KeyError, match="no replica of the set"):
        tables.loads.work.least(0b100)
    with pytest.raises(IndexError):
        _ = tables.loads.work.lowest
    tables.loads.join(3)
    with pytest.raises(ValueError, match="no -1 tokens"):
        tables.loads.begin(3, -1)
    with pytest.raises(ValueError, match=r"no 2199023255552 tokens"):
        tables.loads.begin(3, 1 << 41)
    with pytest.raises((OverflowError, ValueError)):
        tables.loads.work.least(-1)
    with pytest.raises(ValueError, match="grains"):
        native.LoadBook(LoadWeights(grain=0))
    assert (tables.loads.work.level(3), len(tables.index), book.held) == (0, 0, 0)
    book.change(bytes(16), b"")
    book.leave()
    assert len(tables.index) == 0
    with pytest.raises(RuntimeError, match="has left"):
        book.clear()

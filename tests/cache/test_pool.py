import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.cache.pool import BlockPool

NUM_BLOCKS = 6


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model that keeps the two lines as plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.blank = list(range(NUM_BLOCKS))  # front goes first
        self.kept: list[int] = []
        self.counts = dict.fromkeys(range(NUM_BLOCKS), 0)

    @precondition(lambda self: self.blank or self.kept)
    @rule()
    def take(self) -> None:
        expected = (self.blank or self.kept).pop(0)
        assert self.pool.take() == expected
        self.counts[expected] = 1

    @precondition(lambda self: not self.blank and not self.kept)
    @rule()
    def take_from_none(self) -> None:
        with pytest.raises(IndexError):
            self.pool.take()

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def share(self, block: int) -> None:
        if block in self.blank:
            with pytest.raises(KeyError):
                self.pool.share(block)
            return
        self.pool.share(block)
        self.counts[block] += 1
        if block in self.kept:
            self.kept.remove(block)

    @rule(block=st.integers(0, NUM_BLOCKS - 1), keep=st.booleans())
    def release(self, block: int, keep: bool) -> None:
        if self.counts[block] == 0:
            with pytest.raises(ValueError, match="free already"):
                self.pool.release(block, keep)
            return
        self.pool.release(block, keep)
        self.counts[block] -= 1
        if self.counts[block] == 0:
            if keep:
                self.kept.append(block)
            else:
                self.blank.insert(0, block)

    @rule()
    def forget(self) -> None:
        self.pool.forget_kept()
        self.blank = self.kept + self.blank
        self.kept = []

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.kept() == tuple(self.kept)
        assert self.pool.num_free == len(self.blank) + len(self.kept)
        assert self.pool.ref_counts == [self.counts[b] for b in range(NUM_BLOCKS)]


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_integrity_check_notices_corruption() -> None:
    pool = BlockPool(4)
    block = pool.take()
    pool.ref_counts[block] = 0
    with pytest.raises(AssertionError, match="neither free nor owned"):
        pool.check_integrity()
    pool.ref_counts[3] = 1
    with pytest.raises(AssertionError, match="both free and owned"):
        pool.check_integrity()


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)

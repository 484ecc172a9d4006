"""Requests and limits that are refused, and sequences that are aborted."""

from __future__ import annotations

import pytest
from support.scheduler_loop import check_complete, expected, make_loop, request

from penstock.cache.kv_cache import KvCache
from penstock.errors import ConfigError, RequestError
from penstock.length_limits import LengthLimits
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        (request("x", []), "empty"),
        (request("x", [1] * 128), "must be at least 1 tokens shorter"),
        (request("x", [1] * 3, max_tokens=126), "lower max_tokens to at most 125, leave it out"),
        (request("x", [1] * 3, max_tokens=10**30), "lower max_tokens to at most 125"),
        (request("x", [1] * 3, max_tokens=None, min_tokens=126), "min_tokens to at most 125 or"),
        (request("x", [1] * 20, max_tokens=None), "need 32 cache blocks of 4 tokens.*are 8"),
        (request("x", [1] * 20, max_tokens=14), "20 prompt and up to 14 output tokens need 9 "),
        (request("taken", [1]), "in use"),
    ],
)
def test_what_cannot_be_served_is_refused(leader: SequenceState, words: str) -> None:
    loop = make_loop(num_blocks=8)
    loop.scheduler.add(request("taken", [1]))
    with pytest.raises(RequestError, match=words):
        loop.scheduler.add(leader)
    loop.run()
    assert list(loop.finished) == [("taken", 0)]


def test_the_largest_request_that_fits_is_served() -> None:
    loop = make_loop(num_blocks=8)
    leader = request("x", [1] * 20, max_tokens=13)  # 32 slots: the last token needs none
    loop.scheduler.add(leader)
    loop.run()
    check_complete(loop, [leader])


def test_one_sequence_of_several_can_be_aborted_once_it_has_output() -> None:
    loop = make_loop(seqs=2, budget=4)
    leader = request("a", list(range(10)), n=3, max_tokens=8)
    loop.scheduler.add(leader)
    loop.step()
    with pytest.raises(ValueError, match="no output yet"):
        loop.scheduler.abort("a", 0)
    while not loop.outputs:
        loop.step()
    for index in (0, 2):  # the one runs, the other waits for a place
        assert [s.index for s in loop.scheduler.abort("a", index)] == [index]
        loop.scheduler.check_integrity()
    assert loop.scheduler.abort("a", 0) == []
    loop.run()
    assert list(loop.finished) == [("a", 1)]
    assert loop.outputs["a", 1] == expected(leader, 1)[0]
    assert loop.scheduler.abort("a") == []
    assert loop.scheduler.abort("unknown") == []


def test_limits_that_contradict_each_other_are_refused() -> None:
    cache = KvCache(4, 4)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        Scheduler(cache, max_num_seqs=8, max_num_batched_tokens=7, lengths=LengthLimits(16))
    with pytest.raises(ConfigError, match="at least 1"):
        Scheduler(cache, max_num_seqs=0, max_num_batched_tokens=7, lengths=LengthLimits(16))

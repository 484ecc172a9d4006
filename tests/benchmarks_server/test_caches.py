"""The replay of a trace through several caches: what is asked, and routing by prefix affinity."""

from __future__ import annotations

from penstock.bench.traces import HashedRequest
from service.affinity import PrefixAffinity
from service.caches import BLOCK, CONTEXT_BLOCKS, OUTPUT_TOKENS, requests_of


def test_prompts_share_what_the_trace_says() -> None:
    trace = [
        HashedRequest(1024 + 100, 160, [1, 2, 3]),
        HashedRequest(1024 + 200, 5, [1, 2, 4]),
        HashedRequest(512 * 200, 9999, list(range(200))),
    ]
    one, two, long = requests_of(trace)
    assert list(one.text) == list(two.text) == [1, 2]
    assert one.prompt[: 2 * BLOCK] == two.prompt[: 2 * BLOCK]
    assert (len(one.prompt), len(two.prompt)) == (2 * BLOCK + 7, 2 * BLOCK + 13)
    assert (one.output, two.output, long.output) == (10, 1, OUTPUT_TOKENS)
    assert len(long.text) == CONTEXT_BLOCKS
    assert CONTEXT_BLOCKS * BLOCK < len(long.prompt) <= (CONTEXT_BLOCKS + 1) * BLOCK
    assert list(requests_of(trace)) == [one, two, long]  # each time the same


def test_a_text_goes_where_its_beginning_went() -> None:
    policy = PrefixAffinity(3)
    first = [policy.begin([number, 0, 0, 0]) for number in range(3)]
    assert sorted(first) == [0, 1, 2]  # who was sent least
    for number in range(3):
        assert policy.begin([number, 0, 0, 0, 7, 8]) == first[number]
        assert policy.begin([number, *range(1, 10)]) == first[number]  # a tenth is enough
    # Less than a tenth is none: who was sent least gets it.
    sent = [6 + 9, 6 + 9, 6 + 9]
    chosen = policy.begin([0, *range(20, 40)])
    sent[chosen] += 20
    assert policy.begin([1, *range(40, 60)]) != chosen


def test_of_equals_the_one_with_the_fewest_requests() -> None:
    policy = PrefixAffinity(2)
    first, second = policy.begin([1]), policy.begin([2])
    assert first != second
    policy.end(second)
    assert policy.begin([3]) == second  # both were sent as much
    policy.end(first)
    policy.begin([4, 4])
    assert policy.begin([1, 5]) == first  # which alone was sent it


def test_uneven_loads_are_evened_out() -> None:
    policy = PrefixAffinity(2, imbalance=3)
    busy = [policy.begin([1, 2]) for _ in range(4)]
    assert len(set(busy)) == 1
    assert policy.begin([1, 2]) != busy[0]

from __future__ import annotations

import pytest
from support.needs import needs_shared, shared

from penstock.bench.replay import (
    ReplayLimits,
    infinite_hits,
    prefix_curve,
    replay_lengths,
    replay_prefixes,
    scaled,
    static_steps,
)
from penstock.bench.traces import HashedRequest, Lengths, read_lengths, read_mooncake
from penstock.errors import ConfigError

AZURE = "data/traces/azure_llm_2023_conv.csv"
MOONCAKE = "data/traces/mooncake_conversation.jsonl"


def test_static_batches_wait_for_their_longest() -> None:
    lengths = [Lengths(10, 3), Lengths(10, 9), Lengths(7, 2)]
    limits = ReplayLimits(100, max_num_seqs=2, max_num_batched_tokens=8)
    assert static_steps(lengths, limits) == (3 + 8) + (1 + 1)


def test_waste_by_hand() -> None:
    limits = ReplayLimits(8, max_num_seqs=1, max_num_batched_tokens=8, block_size=4)
    report = replay_lengths([Lengths(3, 4)], limits)
    # After each step 3, 4 and 5 of the held slots are filled; after the last nothing is held.
    assert report.steps == 4
    assert report.output_tokens == 4
    assert report.waste == pytest.approx((1 + 0 + 3) / (4 + 4 + 8))


def test_scaling_fits_the_context_and_never_enlarges() -> None:
    lengths = [Lengths(999, 1001), Lengths(10, 1), Lengths(1, 500)]
    assert all(min(s.prompt, s.output) >= 1 for s in scaled(lengths, 100))
    assert max(s.prompt + s.output for s in scaled(lengths, 100)) <= 100
    assert scaled(lengths, 5000) == lengths


def test_infinite_hits_by_hand() -> None:
    trace = [
        HashedRequest(1024, 1, [1, 2]),
        HashedRequest(1024, 1, [1, 2]),  # all but the last block: its last token is computed
        HashedRequest(1300, 1, [1, 3, 4]),
        HashedRequest(1024, 1, [2, 1]),  # another beginning
        HashedRequest(1400, 1, [1, 3, 4]),  # 4 was seen for 276 tokens: 34 of 64 after scaling
    ]
    assert infinite_hits(trace, 64, 32) == (64 + 32) + 64 + 0 + (128 + 32)


def test_hits_need_room() -> None:
    """Ten prompts, asked for twice: found if the cache holds them all, not if it holds few."""
    trace = [HashedRequest(1024, 1, [2 * i, 2 * i + 1]) for i in [*range(10), *range(10)]]
    large, small = (
        replay_prefixes(trace, ReplayLimits(blocks, max_num_seqs=1)) for blocks in (40, 20)
    )
    assert large.infinite_hit_tokens == large.hit_tokens == 10 * 96
    assert large.hit_rate == 960 / 2560
    assert small.hit_tokens == 0


def test_blocks_of_a_trace_are_whole_blocks_of_the_cache() -> None:
    with pytest.raises(ConfigError, match="multiple of the block size"):
        replay_prefixes([], ReplayLimits(8), tokens_per_hash=48)


@needs_shared(AZURE)
def test_azure_wastes_little_and_takes_half_the_steps_of_static_batches() -> None:
    lengths = scaled(read_lengths(shared(AZURE), 500), 2048)
    report = replay_lengths(lengths, ReplayLimits(num_blocks=1024))
    assert report.output_tokens == sum(each.output for each in lengths)
    assert report.waste < 0.04
    assert report.speedup > 1.8
    assert report.preemptions < 10


@needs_shared(MOONCAKE)
def test_mooncake_finds_what_an_infinite_cache_would() -> None:
    trace = read_mooncake(shared(MOONCAKE), 300)
    small, large = prefix_curve(trace, [1_000, 20_000])
    assert large.share_of_infinite > 0.95
    assert small.hit_rate < large.hit_rate <= large.infinite_hit_rate

"""Observed requests: what is kept, what is shared, and what a trace of them says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.workload.conversations import as_conversations
from penstock.workload.observation import Observation
from penstock.workload.prefix_hashes import BLOCK, HASH_BYTES, PrefixHashes
from penstock.workload.requests import ObservedRequests
from penstock.workload.ring import ObservationRing
from penstock.workload.sharing import Sharing
from penstock.workload.summary import summarize
from penstock.workload.trace import coarser, decoded, encoded, read_lines
from penstock.workload.trace_line import TraceLine

HASHES = PrefixHashes()
SYSTEM = list(range(1000, 1064))  # two blocks


def observed(
    at: float,
    prompt: Sequence[int],
    answer: Sequence[int] = (),
    duration: float = 1.0,
    salt: str = "",
    cached: int = 0,
) -> Observation:
    return Observation(
        arrived=at,
        first_token_s=0.25,
        duration_s=duration,
        prompt_tokens=len(prompt),
        cached_tokens=cached,
        output_tokens=len(answer),
        all_output_tokens=len(answer),
        sequences=1,
        endpoint=1,
        end=0,
        hashes=HASHES.of([*prompt, *answer[:-1]], salt),
    )


def requests(*observations: Observation) -> ObservedRequests:
    ring = ObservationRing()
    for each in observations:
        ring.add(each)
    return ObservedRequests.kept(ring.kept())


def test_hashes_tell_equal_beginnings_and_nothing_else() -> None:
    tokens = list(range(100))
    assert len(HASHES.of(tokens)) == 3 * HASH_BYTES
    assert HASHES.of(tokens[:31]) == b""
    assert HASHES.of([*tokens[:64], 7, *tokens[65:]])[: 2 * HASH_BYTES] == HASHES.of(tokens[:64])
    # A block is known by all that is before it.
    moved = HASHES.of([5, *tokens[1:]])
    for start in range(0, len(moved), HASH_BYTES):
        assert moved[start : start + HASH_BYTES] not in HASHES.of(tokens)
    # Neither a tenant's salt nor another server's key has the same.
    assert HASHES.of(tokens, "a") != HASHES.of(tokens)
    assert PrefixHashes().of(tokens) != HASHES.of(tokens)


def test_a_ring_is_bounded_by_requests_and_by_blocks() -> None:
    few = ObservationRing(max_requests=3)
    for at in range(5):
        few.add(observed(at, SYSTEM))
    assert (len(few), few.kept().forgotten) == (3, 2)
    short = ObservationRing(max_blocks=5)
    for at in range(4):
        short.add(observed(at, SYSTEM))
    assert len(short) == 2
    short.add(observed(9, list(range(160))))
    assert ObservedRequests.kept(short.kept()).prompt.tolist() == [160]


def test_requests_are_in_the_order_of_their_arrivals() -> None:
    late, early = observed(5.0, SYSTEM, duration=0.1), observed(1.0, [1] * 40, [2] * 3)
    found = requests(late, early)
    assert found.arrived.tolist() == [1.0, 5.0]
    assert found.prompt.tolist() == [40, 64]
    assert found.output.tolist() == [3, 0]
    assert found.blocks.tolist() == [0, 1, 2]


def test_what_a_boundless_cache_finds() -> None:
    found = requests(
        observed(0, [*SYSTEM, *range(40)]),
        observed(1, [*SYSTEM, *range(50)]),  # three blocks, of which the last begins as above
        observed(2, SYSTEM),  # its last token is computed
        observed(3, [*SYSTEM, 9], salt="other"),
        observed(4, [*SYSTEM, 9], salt="other"),
        observed(5, [7, *SYSTEM]),
    )
    assert Sharing.of(found).shared_tokens.tolist() == [0, 96, 32, 0, 64, 0]


def test_prompts_that_continue_an_answer() -> None:
    answer, said = list(range(40)), list(range(500, 533))
    first = [*SYSTEM, 1, 2, 3]
    second = [*first, *answer, *said]
    found = requests(
        observed(0, first, answer, duration=2),
        observed(1, second),  # before the answer is there
        observed(5, second, answer),
        observed(9, [*second, *answer, 1], duration=math.nan),
    )
    sharing = Sharing.of(found)
    assert sharing.parent.tolist() == [-1, -1, 0, 2]
    assert sharing.root.tolist() == [0, 1, 0, 0]
    assert sharing.turn.tolist() == [0, 0, 1, 2]
    assert sharing.pause_s[2:].tolist() == [3, 3]
    figures = summarize(found).conversations
    assert figures is not None
    assert (figures.conversations, figures.requests, figures.longest) == (1, 2, 3)
    assert figures.new_tokens is not None
    assert figures.new_tokens.max == len(said)
    # Those of a part are turns of conversations that began before it.
    part = summarize(found, since=9.0).conversations
    assert part is not None
    assert (part.conversations, part.requests, part.longest) == (1, 1, 3)


def test_a_prompt_that_ends_within_an_answer_continues_none() -> None:
    first, answer = list(range(40)), list(range(50, 80))
    text = [*first, *answer]
    found = requests(
        observed(0, first, answer),
        observed(5, text[:64]),  # the full blocks of both are equal
        observed(6, [*text, 1]),
    )
    assert Sharing.of(found).parent.tolist() == [-1, -1, 0]
    figures = summarize(found).conversations
    assert figures is not None
    assert figures.new_tokens is not None
    assert figures.new_tokens.mean == 1


def test_figures() -> None:
    found = requests(
        *(observed(at, [1] * 600, [2] * 200, cached=32) for at in (0, 0.5, 100)),
        observed(101, [1] * 10, [2] * 3),
    )
    figures = summarize(found)
    assert figures.requests == 4
    assert figures.endpoints == {"chat": 4}
    assert figures.ends == {"stop": 4}
    assert figures.patterns is not None
    assert figures.patterns.shares["long-in-long-out"] == 0.75
    assert figures.patterns.shares["short-in-short-out"] == 0.25
    assert figures.table is not None
    assert figures.table.prompt_from == [8, 16, 32, 64, 128, 256, 512]
    assert figures.table.output_from == [2, 4, 8, 16, 32, 64, 128]
    assert figures.table.counts[0][0] == 1
    assert figures.table.counts[-1][-1] == 3
    assert figures.arrivals is not None
    assert figures.arrivals.rate == pytest.approx(3 / 101)
    assert (figures.arrivals.peak_second, figures.arrivals.peak_minute) == (2, 2)
    assert sum(figures.arrivals.counts) == 4
    assert figures.prefixes is not None
    assert figures.prefixes.shareable_tokens == 2 * 576
    assert figures.prefixes.cached_tokens == 96
    # Those of a part know what was before it.
    part = summarize(found, since=50.0)
    assert part.requests == 2
    assert part.prefixes is not None
    assert part.prefixes.shareable_tokens == 576


def test_nothing_was_observed() -> None:
    figures = summarize(requests())
    assert figures.requests == 0
    assert (figures.arrivals, figures.table, figures.prefixes) == (None, None, None)
    assert list(encoded(requests())) == []


def test_a_trace_says_what_was_observed(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    observations = []
    for at in np.cumsum(generator.exponential(1.0, 300)):
        own = generator.integers(10**4, size=int(generator.integers(1, 90))).tolist()
        prompt = [*SYSTEM, *own] if generator.random() < 0.5 else own
        answer = generator.integers(10**4, size=int(generator.integers(1, 90))).tolist()
        observations.append(observed(float(at), prompt, answer, duration=0.5))
        if generator.random() < 0.5:
            observations.append(observed(float(at) + 0.6, [*prompt, *answer, *own], [1, 2]))
    found = requests(*observations)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(encoded(found)))
    read = ObservedRequests.of_trace([line for _, line in read_lines(path)])
    assert np.array_equal(read.prompt, found.prompt)
    assert np.array_equal(read.blocks, found.blocks)
    assert np.allclose(np.diff(read.arrived), np.diff(found.arrived), atol=1e-3)
    one, other = summarize(found), summarize(read)
    assert (one.prefixes, one.table, one.patterns) == (other.prefixes, other.table, other.patterns)
    assert one.conversations is not None
    assert other.conversations is not None
    assert one.conversations.requests == other.conversations.requests > 100
    # A part of it begins anew.
    middle = float(found.arrived[200])
    cut = list(decoded(encoded(found, middle)))
    assert len(cut) == len(found) - 200
    assert cut[0].timestamp == 0
    # Full blocks are numbered anew in the order in which they occur, equal ones alike.
    was = found.blocks[found.starts[200] :].tolist()
    now = [i for line in cut for i in full_blocks(line)]
    anew = {number: place for place, number in enumerate(dict.fromkeys(was))}
    assert now == [anew[number] for number in was]
    assert len(anew) < len(was)
    assert now != was
    # What fills no block is nobody else's.
    own = [line.hash_ids[-1] for line in cut if line.hash_ids and line.input_length % BLOCK]
    assert len({*own} - {*now}) == len(own) > 50


def full_blocks(line: TraceLine) -> list[int]:
    """The numbers of the blocks that prompt and answer fill."""
    return [*(line.hash_ids or ())[: line.input_length // BLOCK], *(line.answer_ids or ())]


def test_larger_blocks_share_what_they_can() -> None:
    own = list(range(40))
    found = requests(
        observed(0, SYSTEM + own, own), observed(1, SYSTEM + own[:33]), observed(2, SYSTEM)
    )
    lines = b"".join(coarser(encoded(found), 64)).splitlines()
    one, other, third = (msgspec.json.decode(line, type=TraceLine) for line in lines)
    assert one.hash_ids is not None
    assert other.hash_ids is not None
    assert one.block_size == 64
    assert (len(one.hash_ids), len(other.hash_ids)) == (2, 2)
    assert one.hash_ids[0] == other.hash_ids[0]
    assert one.hash_ids[1] != other.hash_ids[1]
    assert third.hash_ids == one.hash_ids[:1]
    assert one.answer_ids is not None
    assert len(one.answer_ids) == 1
    with pytest.raises(ConfigError, match="a multiple of 32"):
        list(coarser(encoded(found), 48))


def test_turns_of_conversations() -> None:
    answer, said = list(range(40)), list(range(500, 533))
    first = [*SYSTEM, 1, 2, 3]
    second = [*first, *answer, *said]
    found = requests(
        observed(0, first, answer, duration=2),
        observed(1, [*SYSTEM, 9], answer),
        observed(5, second, answer),
        observed(9, [*second, *answer, 1]),
    )
    lines = b"".join(encoded(found)).splitlines()
    turns = as_conversations([msgspec.json.decode(line, type=TraceLine) for line in lines])
    assert [turn.session_id for turn in turns] == [0, None, 0, 0]
    assert [turn.after for turn in turns] == [None, None, [0], [2]]
    assert [turn.delay for turn in turns] == [0, 0, 3000, 3000]
    assert [turn.input_length for turn in turns] == [67, 65, 33, 1]
    assert [turn.hash_ids is None for turn in turns] == [False, False, True, True]


def test_traces_that_cannot_be_observed() -> None:
    ones = [TraceLine(input_length=1, output_length=1, hash_ids=[1], block_size=n) for n in (2, 4)]
    with pytest.raises(ConfigError, match="different sizes"):
        ObservedRequests.of_trace(ones)
    timed = msgspec.structs.replace(ones[0], timestamp=1.0)
    with pytest.raises(ConfigError, match="1 of 2 lines"):
        ObservedRequests.of_trace([ones[0], timed])


def test_a_trace_without_times_or_blocks() -> None:
    lines = [TraceLine(input_length=n, output_length=2 * n) for n in (5, 7)]
    figures = summarize(ObservedRequests.of_trace(lines))
    assert (figures.arrivals, figures.prefixes, figures.first_token_s) == (None, None, None)
    assert figures.output_tokens is not None
    assert figures.output_tokens.max == 14

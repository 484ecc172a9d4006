"""Routing a day's requests to a thousand modelled replicas: decisions a second, hit rate, balance.

``python benchmarks/routing.py --trace mooncake_conversation.jsonl`` repeats an hour of Mooncake's
trace (https://github.com/kvcache-ai/Mooncake) for a day, by several groups of users at once, who
share nothing but the first block; there are half as many as on average at night, and half as many
more by day. A replica computes prompts one after
the other, at an even rate, decodes at an even pace, and keeps what it has seen as long as its cache
has room, the least recently used going first. It reports what its cache gains, at the first token,
and loses. The router is the one of ``penstock route`` and of ``penstock simulate``.

Only the router's own calls are timed: the choice, and all books of a request (its begin, its first
token, its end, and what its replica reports).

``--memory`` prints what the tables of a million blocks take instead, each held by so many replicas.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from pathlib import Path
from random import Random

from penstock.bench.traces import HashedRequest, read_mooncake
from penstock.routing.loads import LoadWeights
from penstock.routing.policies import POLICIES
from penstock.routing.query import KEY_BYTES, Chain, Key, Query, split_keys
from penstock.routing.router import Router, Sent
from penstock.routing.tables import MakeTables, best_tables, plain_tables
from penstock.workload.trace import read_lines

_SPREAD = 1 << 24
"""Numbers of blocks that one group of users has to itself."""
_FIRST_TOKEN, _END = 0, 1
_TREE_TOKENS = 1 << 22


@dataclass(frozen=True)
class Replicas:
    """What replicas are, all alike."""

    number: int
    cache_tokens: int
    prefill_rate: float
    """Tokens of prompts a second."""
    token_s: float
    """Seconds for each token of an answer."""


@dataclass(frozen=True)
class Day:
    """The load: an hour of a trace, over and over."""

    hours: int
    groups: int
    """Groups of users that send the trace at the same time, each with a part of an hour's delay:
    the mean over a day."""


@dataclass(frozen=True)
class Figures:
    """What came of one policy."""

    policy: str
    requests: int
    decisions_per_s: float
    """Choices alone."""
    routed_per_s: float
    """Requests, with all books."""
    hit_rate: float
    """Share of prompt tokens that were found."""
    foretold: float
    """Tokens that the router expected to be found, over those that were."""
    imbalance: float
    """Most tokens that a replica computed, over the mean."""
    spread: float
    """Standard deviation of the tokens that replicas computed, over the mean."""
    ttft_mean_s: float
    ttft_p99_s: float


def requests_of(
    trace: Sequence[tuple[float, HashedRequest]], day: Day
) -> Iterator[tuple[float, Query, int]]:
    """Arrival in seconds, query and answer's tokens of each request, in order."""
    length = 3600.0
    block = trace[0][1].block
    number = 0
    for hour in range(day.hours):
        # The fewest at night, the most twelve hours later.
        pace = 1.0 - 0.5 * math.cos(2 * math.pi * (hour + 0.5) / 24)
        groups = max(round(day.groups * pace), 1)
        merged = []
        for group in range(groups):
            # Each has users of its own, whose first block alone is that of all.
            number += 1
            offset = number * _SPREAD
            delay = group * length / groups
            for place, (at, request) in enumerate(trace):
                merged.append(((at + delay) % length, group, place, offset, request))
        merged.sort(key=lambda each: each[:3])
        for at, _, _, offset, request in merged:
            full = request.input_length // block
            keys = [
                (each + offset if each else 0).to_bytes(KEY_BYTES, "little")
                for each in request.hash_ids[:full]
            ]
            yield (
                hour * length + at,
                Query((Chain(b"".join(keys), block),), request.input_length),
                request.output_length,
            )


class _Replica:
    """A cache and a queue of prompts."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache: OrderedDict[Key, None] = OrderedDict()
        self.free_at = 0.0
        self.computed = 0

    def look_up(self, keys: Sequence[Key]) -> tuple[int, list[Key], list[Key]]:
        """Blocks found of a prompt, and what the cache then gains and loses."""
        cache, found = self.cache, 0
        for key in keys:
            if key not in cache:
                break
            found += 1
        gained = [key for key in keys[found:] if key not in cache]
        for key in reversed(keys):
            cache[key] = None
            cache.move_to_end(key)
        surplus = max(len(cache) - self.capacity, 0)
        return found, gained, [cache.popitem(last=False)[0] for _ in range(surplus)]


def run(
    policy: str,
    requests: Iterator[tuple[float, Query, int]],
    replicas: Replicas,
    weights: LoadWeights,
    tables: MakeTables,
) -> Figures:
    """Route all of them."""
    router = Router(policy, weights, make_tables=tables)
    # Routers with thresholds know no more than what they sent themselves, in a large tree.
    assumed = _TREE_TOKENS if policy == "threshold" else None
    numbers = []
    everyone = 0
    fleet: list[_Replica] | None = None
    events: list[tuple[float, int, int, Sent, list[Key]]] = []
    clock = time.perf_counter_ns
    choosing = keeping = count = asked = found_tokens = foretold = 0
    waits: list[float] = []

    def settle(until: float) -> int:
        spent = 0
        while events and events[0][0] <= until:
            _, _, kind, sent, gained = heappop(events)
            held = fleet[sent.replica].cache if fleet is not None else {}
            added = b"".join(key for key in gained if key in held)
            began = clock()
            if kind == _FIRST_TOKEN:
                if assumed is None:
                    router.reported(sent.replica).change(added, b"")
                router.prefilled(sent)
            else:
                router.end(sent)
            spent += clock() - began
        return spent

    for at, query, output in requests:
        if fleet is None:
            capacity = max(replicas.cache_tokens // query.chains[0].block, 1)
            keys = None if assumed is None else assumed // query.chains[0].block
            numbers = [router.join(keys) for _ in range(replicas.number)]
            everyone = router.replicas
            fleet = [_Replica(capacity) for _ in numbers]
        keeping += settle(at)
        began = clock()
        choice = router.choose(query, everyone)
        chosen = clock()
        sent = router.begin(query, choice)
        ended = clock()
        choosing += chosen - began
        keeping += ended - chosen
        replica = fleet[choice.replica]
        found, gained, lost = replica.look_up(split_keys(query.chains[0].keys))
        if lost and assumed is None:
            removed = b"".join(lost)
            began = clock()
            router.reported(choice.replica).change(b"", removed)
            keeping += clock() - began
        tokens = found * query.chains[0].block
        left = max(query.tokens - tokens, 1)
        replica.computed += left
        replica.free_at = max(replica.free_at, at) + left / replicas.prefill_rate
        first = replica.free_at
        waits.append(first - at)
        count += 1
        heappush(events, (first, 2 * count, _FIRST_TOKEN, sent, gained))
        heappush(events, (first + output * replicas.token_s, 2 * count + 1, _END, sent, []))
        asked += query.tokens
        found_tokens += tokens
        foretold += choice.cached
    keeping += settle(math.inf)
    computed = [] if fleet is None else [replica.computed for replica in fleet]
    mean = sum(computed) / len(computed)
    waits.sort()
    return Figures(
        policy=policy,
        requests=count,
        decisions_per_s=count / choosing * 1e9,
        routed_per_s=count / (choosing + keeping) * 1e9,
        hit_rate=found_tokens / asked,
        foretold=foretold / max(found_tokens, 1),
        imbalance=max(computed) / mean,
        spread=math.sqrt(sum((each - mean) ** 2 for each in computed) / len(computed)) / mean,
        ttft_mean_s=sum(waits) / count,
        ttft_p99_s=waits[int(count * 0.99)],
    )


def memory(replicas: int, holders: int, tables: MakeTables) -> float:
    """Bytes of resident memory that a block takes at each of so many ``holders``, of a million
    that all replicas hold together."""
    router = Router("cost", make_tables=tables)
    numbers = [router.join() for _ in range(replicas)]
    each = (1 << 20) // replicas
    draw = Random(0)
    before = _resident()
    for first in range(0, replicas - holders + 1, holders):
        keys = draw.randbytes(KEY_BYTES * each)
        for number in numbers[first : first + holders]:
            # As from the wire: no two reports share their memory.
            router.reported(number).change(bytes(bytearray(keys)), b"")
    return (_resident() - before) / (replicas // holders * holders * each)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--trace", type=Path)
    what.add_argument("--memory", type=int, metavar="HOLDERS")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--cache-tokens", type=int, default=1 << 17)
    parser.add_argument("--prefill-rate", type=float, default=300.0)
    parser.add_argument("--token-s", type=float, default=0.1)
    parser.add_argument("--decode-tokens", type=int, default=LoadWeights().decode_tokens)
    parser.add_argument("--grain", type=int, default=LoadWeights().grain)
    parser.add_argument("--uncached", type=float, default=LoadWeights().uncached)
    parser.add_argument("--lost", type=float, default=LoadWeights().lost)
    parser.add_argument("--plain", action="store_true", help="tables that are written in Python")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tables = plain_tables if args.plain else best_tables
    if args.memory is not None:
        print(f"{memory(args.replicas, args.memory, tables):.0f} bytes a block and holder")
        return 0
    hashed = read_mooncake(args.trace)
    times = [(line.timestamp or 0) / 1000 for _, line in read_lines(args.trace)]
    trace = list(zip(times, hashed, strict=True))
    replicas = Replicas(args.replicas, args.cache_tokens, args.prefill_rate, args.token_s)
    day = Day(args.hours, args.groups)
    weights = LoadWeights(args.decode_tokens, args.grain, uncached=args.uncached, lost=args.lost)
    print(
        f"{'policy':<15} {'requests':>9} {'choices/s':>9} {'routed/s':>9} {'hits':>6} "
        f"{'foretold':>8} {'max/mean':>8} {'sd/mean':>8} {'TTFT':>7} {'p99':>8}"
    )
    rows = []
    for policy in args.policies:
        each = run(policy, requests_of(trace, day), replicas, weights, tables)
        rows.append(asdict(each))
        print(
            f"{policy:<15} {each.requests:>9,} {each.decisions_per_s:>9,.0f} "
            f"{each.routed_per_s:>9,.0f} {each.hit_rate:>6.1%} {each.foretold:>8.3f} "
            f"{each.imbalance:>8.3f} {each.spread:>8.3f} {each.ttft_mean_s:>7.2f} "
            f"{each.ttft_p99_s:>8.2f}",
            flush=True,
        )
    if args.json is not None:
        asked = {"replicas": asdict(replicas), "day": asdict(day), "weights": asdict(weights)}
        args.json.write_text(
            json.dumps({**asked, "trace": args.trace.name, "runs": rows}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

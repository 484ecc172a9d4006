"""Replays of production traces through the real scheduler and cache, without a model.

Steps cost nothing and sampled tokens are all alike, so what comes out is what bookkeeping alone
decides: how many steps a workload takes, how much of the allocated cache is empty, and how much
of the prompts is found in it. Two published traces are read:

- Azure LLM inference 2023 (Patel et al., "Splitwise", ISCA 2024): prompt and output lengths.
- Mooncake conversations (Qin et al., "Mooncake", FAST 2025): lengths and, for every 512 prompt
  tokens, an id that equal blocks share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.bench.progress import Progress, Stopped, Unseen
from penstock.bench.traces import HashedRequest, Lengths
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import KvCache
from penstock.errors import ConfigError
from penstock.interface.messages import EngineRequest
from penstock.length_limits import LengthLimits
from penstock.sampling.params import SamplingParams
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import make_sequences
from penstock.workload.trace_line import MOONCAKE_BLOCK

TOKENS_PER_HASH = 64
"""Tokens that stand for a block of a Mooncake trace: an eighth of what it has."""


@dataclass(frozen=True)
class ReplayLimits:
    """The engine's limits during a replay."""

    num_blocks: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = BLOCK_SIZE


@dataclass(frozen=True)
class WasteReport:
    """In-flight batching against static batches, all requests offered at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    steps: int
    static_steps: int
    preemptions: int
    mean_running: float
    waste: float
    """Allocated but empty slots over allocated slots, both summed over steps."""

    @property
    def speedup(self) -> float:
        """Steps of static batching per step of in-flight batching."""
        return self.static_steps / self.steps


@dataclass(frozen=True)
class PrefixReport:
    """Prompt tokens found in a cache of ``num_blocks``, and in one that forgets nothing."""

    requests: int
    num_blocks: int
    steps: int
    preemptions: int
    prompt_tokens: int
    hit_tokens: int
    infinite_hit_tokens: int

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens

    @property
    def infinite_hit_rate(self) -> float:
        return self.infinite_hit_tokens / self.prompt_tokens

    @property
    def share_of_infinite(self) -> float:
        return self.hit_tokens / max(self.infinite_hit_tokens, 1)


def scaled(lengths: Sequence[Lengths], max_model_len: int) -> list[Lengths]:
    """Shrink all lengths by the one factor that fits the longest request into a context."""
    longest = max(each.prompt + each.output for each in lengths)
    factor = min(1.0, max_model_len / longest)
    # Down, and for the prompt to no more than leaves room for a token: the sum always fits.
    return [
        Lengths(max(1, int(each.prompt * factor)), max(1, int(each.output * factor)))
        for each in lengths
    ]


def static_steps(lengths: Sequence[Lengths], limits: ReplayLimits) -> int:
    """Steps of static batching under the same budget: the baseline, which only exists here.

    ``max_num_seqs`` requests start together, are prefilled in as few steps as the budget allows,
    and the next batch starts when the longest of them has ended. Memory is not limited, which
    flatters it.
    """
    steps = 0
    for first in range(0, len(lengths), limits.max_num_seqs):
        batch = lengths[first : first + limits.max_num_seqs]
        steps += -(-sum(each.prompt for each in batch) // limits.max_num_batched_tokens)
        steps += max(each.output for each in batch) - 1  # prefill gives the first token
    return steps


def replay_lengths(
    lengths: Sequence[Lengths], limits: ReplayLimits, progress: Progress | None = None
) -> WasteReport:
    """Offer all requests at once, with nothing to share, and run them to their ends.

    Raises Stopped if ``progress`` stops it.
    """
    progress = progress or Unseen()
    longest = max(each.prompt + each.output for each in lengths)
    cache = KvCache(limits.num_blocks, limits.block_size, enable_prefix_caching=False)
    scheduler = _scheduler(cache, limits, longest)
    requests = (([0] * each.prompt, each.output) for each in lengths)
    progress.begin("KV waste", sum(each.output for each in lengths))
    allocated = filled = running = 0
    for _ in _run(scheduler, requests, len(lengths)):
        now = cache.slots()
        allocated += now[0]
        filled += now[1]
        running += len(scheduler.running)
        progress.advance(len(scheduler.running))  # of prefill, too: nearly a token each
    stats = scheduler.stats()
    return WasteReport(
        requests=len(lengths),
        prompt_tokens=sum(each.prompt for each in lengths),
        output_tokens=stats.tokens_generated,
        steps=stats.steps,
        static_steps=static_steps(lengths, limits),
        preemptions=stats.preemptions,
        mean_running=running / stats.steps,
        waste=(allocated - filled) / max(allocated, 1),
    )


def kept_tokens(trace: Sequence[HashedRequest]) -> int:
    """Tokens that stand for a block of the trace: an eighth of Mooncake's, whose replay takes
    minutes otherwise, and all of other sizes, such as those of observed workloads."""
    block = trace[0].block if trace else MOONCAKE_BLOCK
    return TOKENS_PER_HASH if block == MOONCAKE_BLOCK else block


def replay_prefixes(
    trace: Sequence[HashedRequest],
    limits: ReplayLimits,
    tokens_per_hash: int | None = None,
    progress: Progress | None = None,
) -> PrefixReport:
    """Run a trace in its order, ``max_num_seqs`` at a time, and count prompt tokens found.

    Every hash id becomes ``tokens_per_hash`` token ids of its own, a multiple of the block size, by
    default those of :func:`kept_tokens`; all lengths shrink in the same proportion. Times of
    arrival are not used. Raises Stopped if ``progress`` stops it.
    """
    progress = progress or Unseen()
    tokens_per_hash = kept_tokens(trace) if tokens_per_hash is None else tokens_per_hash
    if tokens_per_hash % limits.block_size:
        raise ConfigError(
            f"tokens_per_hash ({tokens_per_hash}) must be a multiple of the block size "
            f"({limits.block_size})"
        )
    sizes = [_shrunk(request, tokens_per_hash) for request in trace]
    longest = max(each.prompt + each.output for each in sizes)
    cache = KvCache(limits.num_blocks, limits.block_size)
    scheduler = _scheduler(cache, limits, longest)

    def requests() -> Iterator[tuple[list[int], int]]:
        for request, size in zip(trace, sizes, strict=True):
            yield _tokens(request.hash_ids, size.prompt, tokens_per_hash), size.output
            progress.advance(1)

    progress.begin(f"{limits.num_blocks:,} blocks", len(trace), "requests")
    for _ in _run(scheduler, requests(), limits.max_num_seqs):
        progress.advance(0)
    stats = scheduler.stats()
    return PrefixReport(
        requests=len(trace),
        num_blocks=limits.num_blocks,
        steps=stats.steps,
        preemptions=stats.preemptions,
        prompt_tokens=stats.prefix_queries,
        hit_tokens=stats.prefix_hits,
        infinite_hit_tokens=infinite_hits(trace, tokens_per_hash, limits.block_size),
    )


def prefix_curve(
    trace: Sequence[HashedRequest],
    num_blocks: Iterable[int],
    max_num_seqs: int = 16,
    tokens_per_hash: int | None = None,
    progress: Progress | None = None,
) -> list[PrefixReport]:
    """``replay_prefixes`` over several cache sizes; of fewer, if ``progress`` stops it."""
    reports: list[PrefixReport] = []
    with contextlib.suppress(Stopped):
        for size in num_blocks:
            limits = ReplayLimits(size, max_num_seqs=max_num_seqs)
            reports.append(replay_prefixes(trace, limits, tokens_per_hash, progress))
    return reports


def infinite_hits(
    trace: Sequence[HashedRequest],
    tokens_per_hash: int,
    block_size: int = BLOCK_SIZE,
) -> int:
    """Prompt tokens found by a cache that forgets nothing and knows a prompt as it arrives.

    Counted on a tree of hash ids, independent of the cache. Per node: how many of its blocks
    have been seen in full.
    """
    nodes: dict[tuple[int, int], int] = {}  # (parent node, hash id): node
    seen: list[int] = [0]
    hits = 0
    for request in trace:
        prompt = _shrunk(request, tokens_per_hash).prompt
        left = prompt // block_size  # full blocks
        usable = (prompt - 1) // block_size  # the last token is always computed
        node, on_path = 0, True
        for hash_id in request.hash_ids:
            node = nodes.setdefault((node, hash_id), len(seen))
            if node == len(seen):
                seen.append(0)
            here = min(left, tokens_per_hash // block_size)
            if on_path:
                found = min(here, seen[node], usable)
                hits += found * block_size
                usable -= found
                on_path = found == tokens_per_hash // block_size
            seen[node] = max(seen[node], here)
            left -= here
    return hits


def _shrunk(request: HashedRequest, tokens_per_hash: int) -> Lengths:
    return Lengths(
        max(1, request.input_length * tokens_per_hash // request.block),
        max(1, request.output_length * tokens_per_hash // request.block),
    )


def _tokens(hash_ids: Iterable[int], length: int, tokens_per_hash: int) -> list[int]:
    tokens: list[int] = []
    for hash_id in hash_ids:
        tokens.extend(range(hash_id * tokens_per_hash, (hash_id + 1) * tokens_per_hash))
    return tokens[:length]


def _scheduler(cache: KvCache, limits: ReplayLimits, max_model_len: int) -> Scheduler:
    lengths = LengthLimits(max_model_len + 1)
    return Scheduler(cache, limits.max_num_seqs, limits.max_num_batched_tokens, lengths)


def _run(
    scheduler: Scheduler, requests: Iterator[tuple[list[int], int]], lookahead: int
) -> Iterator[None]:
    """Run all requests, at most ``lookahead`` of them waiting; yields after every step."""
    for number, (prompt, output) in enumerate(requests):
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        request = EngineRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        scheduler.add(make_sequences(request, seed=0))
        if scheduler.num_waiting >= lookahead:
            yield from _steps(scheduler, until_waiting=lookahead - 1)
    yield from _steps(scheduler, until_waiting=-1)


def _steps(scheduler: Scheduler, until_waiting: int) -> Iterator[None]:
    """Step until at most so many wait (-1: until nothing is left)."""
    while scheduler.num_waiting > until_waiting:
        step = scheduler.schedule()
        if step is None:
            return
        scheduler.update(step, [[0]] * len(step.samples))
        yield

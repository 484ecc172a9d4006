"""Latency of one fixed batch: how fast prompts are read and how fast tokens follow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from penstock.bench.meter import MeteredExecutor, Step, SteppedCore, timed_step
from penstock.bench.progress import Progress, Stopped, Unseen
from penstock.bench.stats import Summary, summarize
from penstock.bench.workload import fixed_lengths, random_requests
from penstock.errors import ConfigError, EngineDeadError


class LatencyWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """``batch_size`` requests that arrive together, ``repeats`` times after ``warmup`` runs."""

    batch_size: int = 1
    input_len: int = 128
    output_len: int = 64
    repeats: int = 5
    warmup: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.output_len < 2:
            raise ConfigError("latency needs an output of at least 2 tokens, or nothing decodes")


class LatencyRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the batch. Rates count tokens of the whole batch."""

    seconds: float
    ttft_s: float  # until the last request has its first token
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_step_s: float  # median
    host_step_s: float  # median, decode steps, outside the executor
    kv_bytes_per_step: int  # mean over decode steps


class LatencyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Best is the fastest run, median the middle one; a busy machine only ever adds time."""

    prefill_tokens_per_s: float
    prefill_tokens_per_s_median: float
    decode_tokens_per_s: float
    decode_tokens_per_s_median: float
    output_tokens_per_s: float  # of the best run, prefill included
    ttft_s: float
    decode_step_s: Summary  # over the decode steps of all runs
    step_host_us: float  # median over runs of the median decode step
    kv_bytes_per_step: int
    steps_per_s: float  # decode steps, best run
    runs: list[LatencyRun]
    partial: bool = False
    """Whether it was stopped before all of its runs were done; those that were not are left out."""


def check_batch(batch_size: int, max_num_seqs: int) -> None:
    """Raise ConfigError for a batch that no step can decode together."""
    if batch_size > max_num_seqs:
        raise ConfigError(
            f"a step has at most {max_num_seqs} of {batch_size} requests; raise --max-num-seqs, or "
            "lower --batch-size"
        )


@dataclass
class PhaseSteps:
    """The steps of the measured runs."""

    prefill: list[list[Step]] = field(default_factory=list)
    """Those until all requests have their first token, of each run."""
    decode: list[Step] = field(default_factory=list)
    """Those that decode the whole batch, of all runs."""


def run_latency(
    core: SteppedCore,
    meter: MeteredExecutor,
    vocab_size: int,
    workload: LatencyWorkload,
    kept: PhaseSteps | None = None,
    progress: Progress | None = None,
) -> LatencyResult:
    """Measure. ``core`` must be idle, run on ``meter``, and admit the whole batch at once.

    The measured steps are added to ``kept``. Raises Stopped if ``progress`` stops it before a run
    is done.
    """
    progress = progress or Unseen()
    runs: list[LatencyRun] = []
    phases = PhaseSteps() if kept is None else kept
    tokens = workload.batch_size * (workload.input_len + workload.output_len)
    try:
        for i in range(workload.warmup + workload.repeats):
            number = i - workload.warmup
            name = "warm-up" if number < 0 else f"run {number + 1} of {workload.repeats}"
            progress.begin(name, tokens)
            run, prefill, decode = _one_run(core, meter, vocab_size, workload, i, progress)
            if number >= 0:
                runs.append(run)
                phases.prefill.append(prefill)
                phases.decode += decode
    except Stopped:
        if not runs:
            raise
    fastest = min(runs, key=lambda run: run.seconds)
    summary = summarize([step.seconds for step in phases.decode])
    assert summary is not None  # every run has decode steps
    best_decode = max(run.decode_tokens_per_s for run in runs)
    return LatencyResult(
        prefill_tokens_per_s=max(run.prefill_tokens_per_s for run in runs),
        prefill_tokens_per_s_median=median(run.prefill_tokens_per_s for run in runs),
        decode_tokens_per_s=best_decode,
        decode_tokens_per_s_median=median(run.decode_tokens_per_s for run in runs),
        output_tokens_per_s=workload.batch_size * workload.output_len / fastest.seconds,
        ttft_s=min(run.ttft_s for run in runs),
        decode_step_s=summary,
        step_host_us=1e6 * median(run.host_step_s for run in runs),
        kv_bytes_per_step=runs[0].kv_bytes_per_step,
        steps_per_s=best_decode / workload.batch_size,
        runs=runs,
        partial=len(runs) < workload.repeats,
    )


def _one_run(
    core: SteppedCore,
    meter: MeteredExecutor,
    vocab_size: int,
    w: LatencyWorkload,
    index: int,
    progress: Progress,
) -> tuple[LatencyRun, list[Step], list[Step]]:
    lengths = fixed_lengths(w.batch_size, w.input_len, w.output_len)
    requests = random_requests(lengths, vocab_size, w.seed + index, f"run{index}")
    steps: list[Step] = []
    waiting = {request.request_id for request in requests}
    ttft = 0.0
    start = time.perf_counter()
    for request in requests:
        core.add_request(request)
    while core.has_work:
        updates, step = timed_step(core, meter)
        steps.append(step)
        for update in updates:
            if update.error is not None:
                raise EngineDeadError(f"a benchmark request failed: {update.error}")
            if update.token_ids and update.request_id in waiting:
                waiting.discard(update.request_id)
                ttft = time.perf_counter() - start
        progress.advance(0 if step.run is None else step.run.tokens)
    seconds = time.perf_counter() - start
    prefill, decode = _phases(steps, w)
    if not decode:
        raise ConfigError(
            f"the engine never decoded all {w.batch_size} requests in one step; raise "
            "--max-num-seqs, --max-num-batched-tokens or --kv-cache-bytes, or lower --batch-size"
        )
    run = LatencyRun(
        seconds=seconds,
        ttft_s=ttft,
        prefill_tokens_per_s=_rate(prefill),
        decode_tokens_per_s=_rate(decode),
        decode_step_s=median(step.seconds for step in decode),
        host_step_s=median(step.host_seconds for step in decode),
        kv_bytes_per_step=sum(s.run.kv_bytes for s in decode if s.run) // len(decode),
    )
    return run, prefill, decode


def _phases(steps: Sequence[Step], w: LatencyWorkload) -> tuple[list[Step], list[Step]]:
    """Steps until every request has its first token, and steps that decode all of them.

    Prompts of a batch that exceeds the step's token budget are read over several steps, in which
    earlier requests may already decode: those tokens are counted as prefill's, they are few.
    """
    decode = [
        step
        for step in steps
        if step.run is not None
        and step.run.tokens == step.run.sequences == w.batch_size
        and step.run.shortest_context > w.input_len
    ]
    first = steps.index(decode[0]) if decode else len(steps)
    return list(steps[:first]), decode


def _rate(steps: Sequence[Step]) -> float:
    """Tokens per second of these steps, host time included."""
    seconds = sum(step.seconds for step in steps)
    return sum(step.run.tokens for step in steps if step.run) / seconds if seconds else 0.0

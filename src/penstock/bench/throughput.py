"""Throughput of many requests offered at once, and the latencies that each of them saw.

The metrics are AIPerf's. TTFT: from the offer to the first token. ITL: between successive
tokens of one request. TPOT: a request's time after its first token, per later token. Request
latency: from the offer to the last token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec import structs

from penstock.bench.meter import ExecutorRun, MeteredExecutor, Step, SteppedCore, timed_step
from penstock.bench.progress import Progress, Stopped, Unseen
from penstock.bench.stats import Summary, summarize
from penstock.errors import EngineDeadError
from penstock.interface.messages import EngineRequest


class ThroughputResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the whole run, from the offer to the last token."""

    requests: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float  # prompt and output
    ttft_s: Summary
    itl_s: Summary | None  # None: no request had a second token
    tpot_s: Summary | None
    request_latency_s: Summary
    prefill_tokens_per_s: float | None  # over steps of mostly prompt tokens; None: none
    decode_tokens_per_s: float | None  # over steps with one token for each sequence
    kv_bytes_per_step: int  # mean over all steps
    mean_sequences_per_step: float
    step_s: Summary
    step_host_us: float  # median over all steps, outside the executor
    steps_per_s: float
    partial: bool = False
    """Whether it was stopped before all requests were finished. Rates are of the time until then,
    and count every token; ``requests`` and all latencies are of those that were finished."""


class StaticBatches(msgspec.Struct, frozen=True):
    """Static batching, the baseline: ``size`` requests start together, and the next ones when the
    last of them is finished.

    With ``padded_to``, the model's context, a batch is the rectangle that it is in servers which
    batch tensors: prompts are padded to the longest in the batch and every row runs until the
    longest output is done, as far as the context reaches. Tokens nobody asked for do not count.
    Without it the engine spares the baseline all of that, and only the waiting is left.
    """

    size: int
    padded_to: int | None = None

    def batches(self, requests: Sequence[EngineRequest]) -> list[list[EngineRequest]]:
        """The requests in batches, padded if that is asked for."""
        cut = [list(requests[i : i + self.size]) for i in range(0, len(requests), self.size)]
        return cut if self.padded_to is None else [_padded(b, self.padded_to) for b in cut]


def _padded(batch: Sequence[EngineRequest], context: int) -> list[EngineRequest]:
    prompt = max(len(request.prompt_token_ids) for request in batch)
    output = max(request.params.max_tokens or 1 for request in batch)
    width = min(prompt, context - output)
    result = []
    for request in batch:
        tokens = request.prompt_token_ids
        # Repeating the prompt costs what padding costs, and keeps every token in the vocabulary.
        padded = (tokens * -(-width // len(tokens)))[: max(width, len(tokens))]
        params = structs.replace(request.params, max_tokens=min(output, context - len(padded)))
        result.append(structs.replace(request, prompt_token_ids=padded, params=params))
    return result


def run_throughput(
    core: SteppedCore,
    meter: MeteredExecutor,
    requests: Sequence[EngineRequest],
    static: StaticBatches | None = None,
    progress: Progress | None = None,
    name: str = "",
) -> ThroughputResult:
    """Offer all ``requests`` to the idle ``core`` at once and run until all are finished.

    With ``static`` they are run in static batches instead; their clocks start with everybody's.
    ``progress`` is told of a run ``name``. Raises Stopped if it stops before any is finished.
    """
    progress = progress or Unseen()
    times: dict[str, list[float]] = {request.request_id: [] for request in requests}
    wanted = {request.request_id: request.params.max_tokens or 0 for request in requests}
    steps: list[Step] = []
    progress.begin(name, sum(wanted.values()))
    partial = False
    start = time.perf_counter()
    try:
        for batch in [list(requests)] if static is None else static.batches(requests):
            for request in batch:
                core.add_request(request)
            while core.has_work:
                updates, step = timed_step(core, meter)
                now = time.perf_counter() - start
                steps.append(step)
                made = 0
                for update in updates:
                    if update.error is not None:
                        raise EngineDeadError(f"a benchmark request failed: {update.error}")
                    if len(times[update.request_id]) != wanted[update.request_id]:
                        times[update.request_id] += [now] * len(update.token_ids)
                        made += len(update.token_ids)
                progress.advance(made)
    except Stopped:
        partial = True
        if all(len(each) != wanted[name] for name, each in times.items()):
            raise
    seconds = time.perf_counter() - start
    return _result(requests, times, wanted, steps, seconds, partial)


def _result(
    requests: Sequence[EngineRequest],
    by_id: Mapping[str, Sequence[float]],
    wanted: Mapping[str, int],
    steps: Sequence[Step],
    seconds: float,
    partial: bool,
) -> ThroughputResult:
    prompt = sum(len(r.prompt_token_ids) for r in requests if by_id[r.request_id])
    finished = [each for name, each in by_id.items() if len(each) == wanted[name]]
    output = sum(map(len, by_id.values()))
    runs = [(step, step.run) for step in steps if step.run is not None]
    ttft = summarize([t[0] for t in finished])
    latency = summarize([t[-1] for t in finished])
    step_s = summarize([step.seconds for step in steps])
    host = summarize([step.host_seconds for step, _ in runs])
    if ttft is None or latency is None or step_s is None or host is None:
        raise EngineDeadError("the engine finished without a single token")
    return ThroughputResult(
        requests=len(finished),
        seconds=seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        requests_per_s=len(finished) / seconds,
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(prompt + output) / seconds,
        ttft_s=ttft,
        itl_s=summarize([b - a for t in finished for a, b in pairwise(t)]),
        tpot_s=summarize([(t[-1] - t[0]) / (len(t) - 1) for t in finished if len(t) > 1]),
        request_latency_s=latency,
        prefill_tokens_per_s=_rate(runs, lambda run: run.tokens >= 2 * run.sequences),
        decode_tokens_per_s=_rate(runs, lambda run: run.tokens == run.sequences),
        kv_bytes_per_step=sum(run.kv_bytes for _, run in runs) // len(runs),
        mean_sequences_per_step=sum(run.sequences for _, run in runs) / len(runs),
        step_s=step_s,
        step_host_us=1e6 * host.p50,
        steps_per_s=len(runs) / seconds,
        partial=partial,
    )


def _rate(
    runs: Sequence[tuple[Step, ExecutorRun]], wanted: Callable[[ExecutorRun], bool]
) -> float | None:
    """Tokens per second of the steps that are wanted, host time included."""
    chosen = [(step, run) for step, run in runs if wanted(run)]
    seconds = sum(step.seconds for step, _ in chosen)
    return sum(run.tokens for _, run in chosen) / seconds if chosen else None

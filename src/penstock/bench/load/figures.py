"""The figures of a run: what its records say, over the whole of it and over its steady part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from penstock.bench.load.confidence import Distribution, distribution
from penstock.bench.load.goodput import good
from penstock.bench.load.outcome import STOPPED
from penstock.bench.load.record import RequestRecord
from penstock.service_level import Limit

NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "ttft": {"vllm": "ttft", "aiperf": "time_to_first_token"},
    "ttfo": {"aiperf": "time_to_first_output_token"},
    "ttst": {"aiperf": "time_to_second_token"},
    "itl": {"vllm": "itl", "aiperf": "inter_chunk_latency"},
    "tpot": {"vllm": "tpot", "aiperf": "inter_token_latency"},
    "e2el": {"vllm": "e2el", "aiperf": "request_latency"},
    "output_tokens_per_s_per_user": {"aiperf": "output_token_throughput_per_user"},
    "prefill_tokens_per_s_per_user": {"aiperf": "prefill_throughput_per_user"},
    "input_tokens": {"aiperf": "input_sequence_length"},
    "output_tokens": {"aiperf": "output_sequence_length"},
}
"""What vLLM's ``bench serve`` and AIPerf call the same quantities."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a part of a run. Distributions are of requests that were sent within it and whose
    answers are whole; rates are of what came within it, whenever it was asked for."""

    begin_s: float
    end_s: float
    requests: int
    """Sent within it."""
    completed: int
    failed: int
    stopped: int
    """Open when the run was stopped; neither completed nor failed."""
    offered_per_s: float | None
    """Requests that were due, per second; None for a part without length."""
    achieved_per_s: float | None
    """Requests that were sent, per second."""
    completed_per_s: float | None
    output_tokens_per_s: float | None
    input_tokens_per_s: float | None
    """Prompt tokens of answers whose first token came within it."""
    mean_in_flight: float | None
    distributions: dict[str, Distribution]
    """Seconds; of lengths, tokens; and tokens per second."""
    patterns: dict[str, dict[str, Distribution]]
    """The same by pattern, where there are several."""
    cached_share: float | None
    """The part of the prompt tokens that the server's cache held; None where it does not say."""
    draft_acceptance: float | None
    """The part of the drafted tokens, as the answers' usage tells them, that was accepted."""
    good: int | None
    """Answers within all limits; None without limits."""
    good_share: float | None
    """The part of all that were sent and not stopped."""
    goodput_per_s: float | None
    output_length_mismatches: int
    """Answers that have another length than was asked for."""
    without_usage: int
    """Answers whose tokens the server did not count; their chunks stand for them."""
    discrepancies: dict[str, int]
    """Counts of the server's that cannot be true."""
    errors: dict[str, int]
    """How many of each kind."""
    error_messages: dict[str, str]
    """The first of each kind."""


def figures(
    records: Sequence[RequestRecord],
    limits: Sequence[Limit] = (),
    begin_s: float = 0.0,
    end_s: float | None = None,
) -> Figures:
    """Figures of the part from ``begin_s`` to ``end_s``; without an end, until the last one's."""
    if end_s is None:
        end_s = max((record.end_s for record in records), default=begin_s)
    sent = [record for record in records if begin_s <= record.sent_s <= end_s]
    whole = [record for record in sent if record.ok]
    ended = [record for record in sent if record.error != STOPPED]
    failed = [record for record in ended if not record.ok]
    seconds = end_s - begin_s

    def per_s(count: float) -> float | None:
        return count / seconds if seconds > 0 else None

    within = [record for record in whole if limits and good(record, limits)]
    patterns = sorted({record.pattern for record in whole if record.pattern is not None})
    messages: dict[str, str] = {}
    for record in failed:
        messages.setdefault(record.error or "", record.message or "")
    return Figures(
        begin_s=begin_s,
        end_s=end_s,
        requests=len(sent),
        completed=len(whole),
        failed=len(failed),
        stopped=len(sent) - len(ended),
        offered_per_s=per_s(sum(begin_s <= r.scheduled_s <= end_s for r in records)),
        achieved_per_s=per_s(len(sent)),
        completed_per_s=per_s(sum(r.ok and begin_s <= r.end_s <= end_s for r in records)),
        output_tokens_per_s=per_s(sum(_tokens_within(r, begin_s, end_s) for r in records)),
        input_tokens_per_s=per_s(
            sum(r.input_tokens or 0 for r in records if _began_within(r, begin_s, end_s))
        ),
        mean_in_flight=per_s(
            sum(max(0.0, min(r.end_s, end_s) - max(r.sent_s, begin_s)) for r in records)
        ),
        distributions=distributions(whole),
        patterns={
            name: distributions([record for record in whole if record.pattern == name])
            for name in (patterns if len(patterns) > 1 else ())
        },
        cached_share=_share(
            [(r.cached_tokens, r.input_tokens) for r in whole if r.cached_tokens is not None]
        ),
        draft_acceptance=_share(
            [
                (r.accepted_draft_tokens, r.accepted_draft_tokens + (r.rejected_draft_tokens or 0))
                for r in whole
                if r.accepted_draft_tokens is not None
            ]
        ),
        good=len(within) if limits else None,
        good_share=len(within) / len(ended) if limits and ended else None,
        goodput_per_s=per_s(len(within)) if limits else None,
        output_length_mismatches=sum(
            r.output_tokens is not None
            and r.output_tokens_asked is not None
            and r.output_tokens != r.output_tokens_asked
            for r in whole
        ),
        without_usage=sum(record.output_tokens is None for record in whole),
        discrepancies=dict(Counter(what for record in whole for what in record.discrepancies)),
        errors=dict(Counter(record.error or "" for record in failed)),
        error_messages=messages,
    )


def distributions(records: Sequence[RequestRecord]) -> dict[str, Distribution]:
    """Every quantity of whole answers that at least one of them has."""
    found = {name: distribution(groups) for name, groups in samples_of(records).items()}
    return {name: each for name, each in found.items() if each is not None}


def samples_of(records: Sequence[RequestRecord]) -> dict[str, list[list[float]]]:
    """Every quantity of whole answers: a list for each answer, which may be empty."""
    return {
        "ttft": _each([r.ttft_s for r in records]),
        "ttfo": _each([r.ttfo_s if r.reasoning_chunks else None for r in records]),
        "ttst": _each([r.ttst_s for r in records]),
        "itl": [[gap / 1e6 for gap in r.gaps_us[1:]] for r in records],
        "tpot": _each([r.tpot_s for r in records]),
        "longest_gap": _each([max(r.gaps_us[1:], default=0) / 1e6 or None for r in records]),
        "e2el": _each([r.e2el_s for r in records]),
        "output_tokens_per_s_per_user": _each(
            [1 / t if (t := r.tpot_s) else None for r in records]
        ),
        "prefill_tokens_per_s_per_user": _each(
            [r.input_tokens / t if r.input_tokens and (t := r.ttft_s) else None for r in records]
        ),
        "input_tokens": _each([r.input_tokens for r in records]),
        "output_tokens": _each([r.tokens for r in records]),
        "send_lag": _each([max(0.0, r.sent_s - r.scheduled_s) for r in records]),
    }


def steady_part(records: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """The part of a run between its ramps, from the end of the first answer to the last sending.

    Before, the server fills; after, it drains. None where that is less than half of the time in
    which requests were sent: such a run has no steady part.
    """
    ends = [record.end_s for record in records if record.ok]
    if not ends:
        return None
    begin, last = min(ends), max(record.sent_s for record in records)
    first = min(record.sent_s for record in records)
    return (begin, last) if last > begin and last - begin >= (last - first) / 2 else None


def _each(values: Sequence[float | int | None]) -> list[list[float]]:
    return [[] if value is None else [float(value)] for value in values]


def _share(pairs: Sequence[tuple[int | None, int | None]]) -> float | None:
    total = sum(of or 0 for _, of in pairs)
    return sum(part or 0 for part, _ in pairs) / total if total else None


def _began_within(record: RequestRecord, begin: float, end: float) -> bool:
    return record.ttft_s is not None and begin <= record.sent_s + record.ttft_s <= end


def _tokens_within(record: RequestRecord, begin: float, end: float) -> float:
    """Output tokens that came between two times; those of a request are spread evenly over its
    chunks, since servers do not say how many a chunk has."""
    gaps = record.gaps_us
    if not gaps:
        return 0.0
    if begin <= record.sent_s and record.end_s <= end:
        return record.tokens
    times = accumulate(gaps)
    inside = sum(begin <= record.sent_s + time / 1e6 <= end for time in times)
    return record.tokens * inside / len(gaps)

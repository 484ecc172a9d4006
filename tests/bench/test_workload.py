"""Workloads: random prompts of given lengths."""

from __future__ import annotations

import pytest

from penstock.bench.stats import summarize
from penstock.bench.traces import Lengths
from penstock.bench.workload import check_fit, fixed_lengths, random_requests
from penstock.errors import ConfigError


def test_requests_have_the_lengths_and_differ() -> None:
    requests = random_requests(fixed_lengths(3, 20, 7), vocab_size=50, seed=3)
    prompts = [tuple(request.prompt_token_ids) for request in requests]
    assert len(set(prompts)) == 3
    assert all(len(prompt) == 20 and 0 <= min(prompt) <= max(prompt) < 50 for prompt in prompts)
    assert all(r.params.max_tokens == 7 and r.params.ignore_eos for r in requests)
    again = random_requests(fixed_lengths(3, 20, 7), vocab_size=50, seed=3)
    assert [tuple(request.prompt_token_ids) for request in again] == prompts


def test_what_does_not_fit_is_refused() -> None:
    check_fit([Lengths(100, 28)], 128)
    with pytest.raises(ConfigError, match=r"1 of 2 requests exceed .* 128 tokens.* 100 \+ 29"):
        check_fit([Lengths(100, 29), Lengths(1, 1)], 128)


def test_summaries() -> None:
    summary = summarize([4.0, 1.0, 2.0, 3.0])
    assert summary is not None
    assert (summary.count, summary.mean, summary.p50, summary.max) == (4, 2.5, 2.5, 4.0)
    assert summary.p90 == pytest.approx(3.7)
    assert summarize([]) is None

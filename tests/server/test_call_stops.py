"""Tokens that end an answer because what a call returns would follow."""

from __future__ import annotations

from penstock.sampling.params import SamplingParams
from penstock.server.openai.sampling import stopped_by


def test_one_more_token_ends_an_answer() -> None:
    assert stopped_by(SamplingParams(), 7).stop_token_ids == (7,)
    assert stopped_by(SamplingParams(stop_token_ids=(9, 7)), 7).stop_token_ids == (9, 7)
    for params in (SamplingParams(), SamplingParams(ignore_eos=True)):
        assert stopped_by(params, None) is params
    assert stopped_by(SamplingParams(ignore_eos=True), 7).stop_token_ids == ()

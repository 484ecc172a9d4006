"""Workloads are what they say, the same for every engine, and never twice the same."""

from __future__ import annotations

import pytest

from comparison.cases import Case, Metric, draw_requests, mixed_lengths, standard_cases, warm_up

CASES = {case.name: case for case in standard_cases(128, 128, (64, 256))}


def test_the_standard_cases() -> None:
    assert list(CASES) == [
        *("decode", "prefill", "batch4", "batch8", "batch16", "batch32", "mixed"),
        *("depth4096", "depth32768", "http"),
    ]
    assert [case.name for case in CASES.values() if case.named_only] == ["depth4096", "depth32768"]
    assert CASES["depth4096"].lengths == ((4096, 128),)
    assert CASES["decode"].lengths == ((128, 128),)
    assert CASES["prefill"].lengths == ((512, 1),)
    assert CASES["batch16"].lengths == ((128, 128),) * 16
    assert CASES["http"].clients == 16
    assert [case.name for case in CASES.values() if case.over_http] == ["http"]
    assert CASES["batch4"].output_tokens == 512
    assert CASES["batch4"].longest == 256


def test_mixed_lengths_fill_their_ranges_and_are_seeded() -> None:
    lengths = mixed_lengths(2000, (32, 64), (5, 7))
    assert {prompt for prompt, _ in lengths} == set(range(32, 65))
    assert {output for _, output in lengths} == {5, 6, 7}
    assert mixed_lengths(2000, (32, 64), (5, 7)) == lengths
    assert mixed_lengths(2000, (32, 64), (5, 7), seed=1) != lengths


def test_prompts_repeat_for_a_seed_and_share_nothing_otherwise() -> None:
    ids = range(256, 4000)
    case = CASES["batch8"]
    requests = draw_requests(case, ids, (0, 1))
    assert requests == draw_requests(case, ids, (0, 1))
    assert [(len(r.prompt), r.output) for r in requests] == list(case.lengths)
    assert all(token in ids for r in requests for token in r.prompt)
    others = draw_requests(case, ids, (0, 2)) + draw_requests(CASES["batch16"], ids, (0, 1))
    starts = [tuple(r.prompt[:8]) for r in requests + others]
    assert len(set(starts)) == len(starts)


def test_warm_up_keeps_prompts_and_cuts_outputs() -> None:
    case = Case("x", "x", ((7, 1), (9, 30)), (Metric.OUTPUT,))
    requests = draw_requests(case, range(300, 400), (0,))
    warm = warm_up(requests, 4)
    assert [r.prompt for r in warm] == [r.prompt for r in requests]
    assert [r.output for r in warm] == [1, 4]


@pytest.mark.parametrize("metric", list(Metric))
def test_only_times_are_better_when_lower(metric: Metric) -> None:
    assert metric.higher_is_better == metric.value.endswith("/s")

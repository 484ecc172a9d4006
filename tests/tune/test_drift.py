"""How loads differ, in words."""

from __future__ import annotations

import msgspec
import pytest

from penstock.profile import Lengths, Workload
from penstock.tune.drift import drifts

LENGTHS = Lengths(mean=1000.0, p50=1000.0, p90=2000.0, p99=3000.0, longest=4000)
MADE = Workload(
    source="a.csv",
    requests=100,
    per_s=4.0,
    concurrency=None,
    input_tokens=LENGTHS,
    output_tokens=LENGTHS,
    shared=0.1,
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"per_s": 5.9, "shared": 0.2}, []),
        ({"per_s": None}, []),
        (
            {"per_s": 1.0},
            ["requests: 1 a second, 0.25 times as much as the profile was made for (4)"],
        ),
        (
            {"input_tokens": msgspec.structs.replace(LENGTHS, p50=3100.0)},
            [
                "prompts, median: 3,100 tokens, 3.1 times as much as the profile was made for "
                "(1,000)"
            ],
        ),
        (
            {"shared": 0.6},
            [
                "prompt tokens that an earlier prompt had: 60%, and the profile was made for 10%",
            ],
        ),
    ],
)
def test_differences(changes: dict[str, object], told: list[str]) -> None:
    assert [str(each) for each in drifts(MADE, msgspec.structs.replace(MADE, **changes))] == told

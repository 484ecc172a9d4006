"""Limits of a service level, as they are written and told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service_level import Limit, parse_limit


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("ttft:500ms", "ttft:500ms"),
        ("tpot:30", "tpot:30ms"),
        ("e2el:10s", "e2el:10000ms"),
        ("e2el:3600s", "e2el:3600000ms"),
        ("ttft:1234.5678ms", "ttft:1234.5678ms"),
        ("ttft:7.3ms", "ttft:7.3ms"),
        ("ttft:1us", "ttft:0.001ms"),
    ],
)
def test_limits_are_told_as_they_are(written: str, told: str) -> None:
    assert str(parse_limit(written)) == told


@given(st.floats(1e-9, 1e9))
def test_what_is_told_is_read_as_the_same(seconds: float) -> None:
    limit = Limit("ttft", seconds)
    assert parse_limit(str(limit)) == limit

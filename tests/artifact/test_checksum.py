"""CRC-32C by the instruction and by tables, against its published values and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.cpu import native

# The first is the customary check value, the others are from RFC 3720, appendix B.4.
KNOWN = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"", 0),
]
STREAM = 4096  # bytes that each of three streams takes at a time


@pytest.fixture(scope="module", params=["crc32c", "crc32c_by_tables"])
def checksum(request: pytest.FixtureRequest) -> Any:
    function = getattr(native.load(), request.param)
    return lambda data, before=0: function(np.frombuffer(bytes(data), np.uint8), before)


def slowly(data: bytes, before: int = 0) -> int:
    """Bit by bit, as the definition has it."""
    crc = before ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(("data", "value"), KNOWN)
def test_published_values(checksum: Any, data: bytes, value: int) -> None:
    assert checksum(data) == value == slowly(data)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 3 * STREAM - 1, 3 * STREAM, 3 * STREAM + 1, 40_000])
def test_against_the_definition(checksum: Any, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert checksum(data) == slowly(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 8 * STREAM), st.integers(0, 8 * STREAM))
def test_in_two_parts(seed: int, first: int, second: int) -> None:
    module: Any = native.load()
    data = np.random.default_rng(seed).integers(0, 256, first + second, np.uint8)
    whole = module.crc32c(data)
    assert module.crc32c(data[first:], module.crc32c(data[:first])) == whole
    assert module.crc32c_by_tables(data) == whole

"""The GGUF metadata reader: what it reads, and that damaged files give one clear error."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import TokenizerError
from penstock.gguf import metadata as module
from penstock.gguf.arrays import Numbers, Strings
from penstock.gguf.metadata import GgufValue, read_metadata
from penstock.gguf.metadata import parse_metadata as parse
from penstock.gguf.native import native


def parse_metadata(data: bytes) -> dict[str, GgufValue]:
    return parse(data, "some data", TokenizerError).pairs


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> tuple[int, bytes]:
    """Value type and bytes, as a writer of GGUF chooses them for Python values."""
    if isinstance(item, bool):
        return 7, bytes([item])
    if isinstance(item, int):
        return 11, struct.pack("<q", item)
    if isinstance(item, float):
        return 12, struct.pack("<d", item)
    if isinstance(item, str):
        return 8, string(item)
    parts = [value(element) for element in item]
    kind = parts[0][0] if parts else 4
    body = b"".join(raw for _, raw in parts)
    return 9, struct.pack("<IQ", kind, len(parts)) + body


def gguf(pairs: dict[str, Any], version: int = 3) -> bytes:
    body = b""
    for key, item in pairs.items():
        kind, raw = value(item)
        body += string(key) + struct.pack("<I", kind) + raw
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body


@given(st.lists(st.text(max_size=5), min_size=1), st.integers(0, 3000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_many_strings(some: list[str], count: int, by_native_code: bool) -> None:
    texts = [some[i % len(some)] + "\u00e9" * (i % 3 == 0) for i in range(1024 + count)]
    with patch("penstock.gguf.metadata.native", native if by_native_code else None):
        (values,) = parse_metadata(gguf({"k": texts})).values()
    assert isinstance(values, Strings)
    assert list(values) == texts
    assert values == texts
    assert (values[0], values[5], values[-1]) == (texts[0], texts[5], texts[-1])
    assert values[3:9] == texts[3:9]
    assert values.take([5, 0, 5]) == [texts[5], texts[0], texts[5]]
    assert values.lengths.tolist() == [len(text) for text in texts]
    last = {text: i for i, text in enumerate(texts)}
    assert values.positions({*texts[:4], "none of them"}) == {t: last[t] for t in texts[:4]}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw.replace(b"<700>", b"<7\xff0>"), "a string is not UTF-8"),
        (lambda raw: raw.replace(b"<700>\xc3\xa9", b"<700>b\xc3"), "a string is not UTF-8"),
        (
            lambda raw: raw.replace(b"\xc3\xa9" + b"\x07", b"\xc3\xa9" + b"\x08", 1),
            "UTF-8|items|bytes",
        ),
        (lambda raw: raw[:-3], "more than the file can hold"),
        (lambda raw: raw.replace(struct.pack("<Q", 8), b"\xff" * 8, 1), "more than the file can"),
    ],
)
def test_damage_among_many_strings(damage: Any, message: str) -> None:
    whole = gguf({"k": [f"<{i}>\u00e9" for i in range(2000)]})
    damaged = damage(whole)
    assert damaged != whole
    with pytest.raises(TokenizerError, match=message):
        parse_metadata(damaged)


scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()
)
arrays = st.one_of(
    st.lists(st.text(max_size=5), max_size=8),
    st.lists(st.integers(-5, 5), max_size=8),
    st.lists(st.booleans(), max_size=8),
    st.lists(st.lists(st.floats(allow_nan=False), min_size=1, max_size=3), max_size=3),
)
metadata = st.dictionaries(st.text(max_size=10), st.one_of(scalars, arrays), max_size=6)


@settings(max_examples=150, deadline=None)
@given(metadata, st.sampled_from([2, 3]))
def test_reads_what_was_written(pairs: dict[str, Any], version: int) -> None:
    assert parse_metadata(gguf(pairs, version) + b"tensors follow") == pairs


@settings(max_examples=150, deadline=None)
@given(metadata, st.data())
def test_every_truncation_is_refused(pairs: dict[str, Any], data: st.DataObject) -> None:
    whole = gguf(pairs)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(TokenizerError):
        parse_metadata(whole[:cut])


@settings(max_examples=300, deadline=None)
@given(metadata, st.data())
def test_damaged_bytes_never_crash(pairs: dict[str, Any], data: st.DataObject) -> None:
    damaged = bytearray(gguf(pairs))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TokenizerError):
        parse_metadata(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_never_crashes(noise: bytes) -> None:
    with contextlib.suppress(TokenizerError):
        parse_metadata(b"GGUF\x03\x00\x00\x00" + noise)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "more bytes"),
        (b"PK\x03\x04", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "more than the file can hold"),
        (
            gguf({}, 3)[:-8]
            + struct.pack("<Q", 1)
            + string("k")
            + struct.pack("<I", 99)
            + b"0" * 9,
            "not a value type",
        ),
        (gguf({"a": [1]})[:-16] + struct.pack("<Q", 2**62) + b"0" * 8, "more than the file"),
        (gguf({"a": "xy"})[:-2] + b"\xff\xfe", "UTF-8"),
        (gguf({"a": ["xy"]})[:-2] + b"\xff\xfe", "UTF-8"),
        (gguf({"a": True})[:-1] + b"\x02", "bool"),
        (gguf({"a": [[[[[1]]]]]}), "nested"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        parse_metadata(data)


def test_a_key_may_occur_once() -> None:
    one = gguf({"a": 1})
    twice = one[:16] + struct.pack("<Q", 2) + one[24:] * 2
    with pytest.raises(TokenizerError, match="twice"):
        parse_metadata(twice)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(TokenizerError, match="cannot read"):
        read_metadata(path, TokenizerError)
    path.write_bytes(b"")
    with pytest.raises(TokenizerError, match="empty"):
        read_metadata(path, TokenizerError)
    path.write_bytes(gguf({"a": "b"}))
    assert read_metadata(path, TokenizerError) == {"a": "b"}


def array(kind: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + content


def one(value: bytes) -> bytes:
    """A file of one pair, ``k``."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + value


def test_arrays_of_numbers_take_their_bytes() -> None:
    data = one(array(0, 1 << 22, bytes(1 << 22)))
    tracemalloc.start()
    values = parse_metadata(data)["k"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 22
    assert isinstance(values, Numbers)
    assert (len(values), values[5], values.kind, values[:2]) == (1 << 22, 0, int, [0, 0])


@pytest.mark.parametrize("kind", range(13))
@pytest.mark.parametrize("count", [1 << 24, 1 << 40, (1 << 64) - 1])
def test_counts_that_the_file_cannot_hold(kind: int, count: int) -> None:
    with pytest.raises(TokenizerError, match="more than the file can hold"):
        parse_metadata(one(array(kind, count, bytes(64))))


def test_many_small_values() -> None:
    """Each would be an object: strings, inner arrays, and pairs."""
    many = module._MAX_ITEMS + 1
    limit = f"more than {module._MAX_ITEMS}"
    with pytest.raises(TokenizerError, match=limit):
        parse_metadata(one(array(8, many, bytes(8 * many))))
    inner = struct.pack("<IQ", 9, 1000) + (struct.pack("<IQ", 0, 0)) * 1000
    with pytest.raises(TokenizerError, match=limit):
        parse_metadata(one(array(9, many // 1000 + 1, inner * (many // 1000 + 1))))


def test_metadata_of_gigabytes(tmp_path: Path) -> None:
    """The gigabytes are a hole in the file, which takes no room on the disk."""
    path = tmp_path / "vast.gguf"
    path.write_bytes(one(array(0, 1 << 35, b"")))
    os.truncate(path, 1 << 36)
    with pytest.raises(TokenizerError, match="metadata may have"):
        read_metadata(path, TokenizerError)

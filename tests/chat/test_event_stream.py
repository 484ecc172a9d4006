from __future__ import annotations

import pytest

from penstock.chat.event_stream import event_data


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"data: a\n\ndata: b\n\ndata: [DONE]\n\ndata: c\n\n", ["a", "b"]),
        (b"data:a\r\n\r\n", ["a"]),
        (b": a comment\n\nevent: x\ndata: 1\ndata: 2\nid: 5\n\n", ["1\n2"]),
        (b"data:  spaced\n\n", [" spaced"]),
        (b"data: cut off\n", []),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_events(lines: bytes, expected: list[str]) -> None:
    assert list(event_data(lines.splitlines(keepends=True))) == expected

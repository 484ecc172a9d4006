"""Forms in which clients upload files: ``multipart/form-data``."""

from __future__ import annotations

import pytest

from penstock.server.errors import ApiError
from penstock.server.openai.batches.form import read_form


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    made = b""
    for head, data in parts:
        made += b"--b\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n"
        made += data + b"\r\n"
    return made + end


def test_a_form() -> None:
    data = b"\r\n--bc\r\n\x00\xff--b"
    parts = read_form(
        'multipart/form-data; boundary="b"',
        form(('name="file"; filename="a b.jsonl"', data), ("name=purpose", b"batch")),
    )
    assert parts["file"].data == data
    assert parts["file"].filename == "a b.jsonl"
    assert parts["purpose"].data == b"batch"


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json", b"{}", "multipart/form-data"),
        ("", b"", "multipart/form-data"),
        ("multipart/form-data", form(), "boundary"),
        ("multipart/form-data; boundary=b", b"", "end"),
        ("multipart/form-data; boundary=b", form(("name=a", b"x"), end=b""), "end"),
        ("multipart/form-data; boundary=b", b"--b\r\nno header\r\n--b--", "no header"),
        ("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\nx\r\n--b--", "no name"),
        ("multipart/form-data; boundary=b", form(("name=a", b""), ("name=a", b"")), "twice"),
        ("multipart/form-data; boundary=b", form(*(20 * [("name=a", b"")])), "16 parts"),
    ],
)
def test_malformed_forms(kind: str, body: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        read_form(kind, body)

"""Input files of batches: how requests are read and refused, and how completion windows are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.batch_files import ENDPOINT, line, lines

from penstock.server.openai.batches.input import body_at, read_lines, window_seconds


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n\n", "no requests"),
        (b"{", "line 1 is no request"),
        (b'{"custom_id": "a"}\n', "missing required field"),
        (lines({**line("a"), "method": "GET"}), "method"),
        (lines({**line("a"), "extra": 1}), "extra"),
        (lines(line("a"), line("b"), line("a")), "line 3: custom_id 'a' is that of line 1, too"),
        (lines(line("")), "1 to 256"),
        (lines(line("a", "/v1/embeddings")), "url is not /v1/completions"),
        (lines(line("a", stream=True)), "not streamed"),
        (lines(line("a", priority="high")), "priority"),
        (b"\xff\xfe\n", "line 1 is no request: it is text in UTF-16"),
        (json.dumps([line("a")]).encode(), "each line is one whole object"),
        (lines(line("a")).replace(b'"max_tokens"', b'"a": 1, "a"'), "'a' is there twice"),
        (lines(line("a")).replace(b'"url"', b'"method": "POST", "url"'), "'method' is there twice"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_an_input_file(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    _, faults = read_lines(path, ENDPOINT)
    assert said in faults[0].message


def test_requests_are_read_where_they_are(tmp_path: Path) -> None:
    """A byte order mark, Windows line ends and blank lines are skipped."""
    given = [json.dumps(line(name, prompt="\u00e9" * 3)).encode() for name in ("a", "b", "c")]
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf" + given[0] + b"\r\n\r\n" + given[1] + b"\n" + given[2])
    places, faults = read_lines(path, ENDPOINT)
    assert (faults, [place.custom_id for place in places]) == ([], ["a", "b", "c"])
    for place, data in zip(places, given, strict=True):
        assert json.loads(body_at(path, place)) == json.loads(data)["body"]
    path.write_bytes(b"{}")
    with pytest.raises(OSError, match="has changed"):
        body_at(path, places[0])


def test_so_many_faults_are_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"{\n" * 1000)
    assert len(read_lines(path, ENDPOINT)[1]) == 100


def test_windows() -> None:
    assert [window_seconds(text) for text in ("24h", "90m", "30s")] == [86_400, 5400, 30]
    assert window_seconds("2d") == 172_800
    for text in ("", "h", "0h", "24", "15d", "-1h", "1.5h", "24 h", "24h\n"):
        assert window_seconds(text) is None

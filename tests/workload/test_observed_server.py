"""What a client makes of a server's answers, those that break off among them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.errors import PenstockError
from penstock.workload.observed_server import ObservedServer
from penstock.workload.trace import decoded

LINE = b'{"input_length":1,"output_length":1}\n'


@contextmanager
def answering(*chunks: bytes) -> Iterator[tuple[ObservedServer, list[str]]]:
    """A server that sends these parts of a chunked answer, and then closes the connection; and the
    paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(chunk)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield ObservedServer(f"http://127.0.0.1:{server.server_port}"), paths
        server.shutdown()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a_trace_comes_in_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.workload.observed_server._PIECE", 50)
    with answering(chunk(LINE * 2), chunk(LINE[:9]), chunk(LINE[9:]), chunk(b"")) as (server, _):
        pieces = list(server.trace())
    assert b"".join(pieces) == LINE * 3
    assert len(pieces) > 1
    assert all(piece.endswith(b"\n") for piece in pieces)


@pytest.mark.parametrize(
    "chunks",
    [(), (chunk(LINE),), (chunk(LINE * 2)[:-9],), (chunk(LINE), chunk(LINE[:9]), chunk(b""))],
    ids=["at once", "between chunks", "in a chunk", "in a line"],
)
def test_a_trace_that_breaks_off_is_not_taken_for_whole(chunks: tuple[bytes, ...]) -> None:
    with answering(*chunks) as (server, _), pytest.raises(PenstockError, match="broke off"):
        list(server.trace())


@pytest.mark.parametrize("since_s", [90.5, 30 * 86400.0, 1e9])
def test_a_part_of_any_length_is_asked_for(since_s: float) -> None:
    with answering(chunk(b"")) as (server, paths):
        assert not list(server.trace(since_s))
    asked = parse_qs(urlsplit(paths[0]).query)
    assert asked["format"] == ["jsonl"]
    assert [float(each) for each in asked["since"]] == [since_s]


def test_lines_of_another_version() -> None:
    wrong = LINE.replace(b'"output_length":1', b'"output_length":"few"')
    with answering(chunk(LINE + wrong), chunk(b"")) as (server, _):
        lines = decoded(server.trace())
        assert next(lines).output_length == 1
        with pytest.raises(PenstockError, match="another version of Penstock"):
            next(lines)
